/* Where an arena's memory comes from: one small table of functions per kind of memory.
 *
 * A backend reserves address ranges and gives them physical memory by whole units. It keeps no books: which units are
 * committed, and how many bytes that is, only the arena knows. All calls on one arena are made under that arena's lock.
 * This header is read by C and by cffi.
 */
#ifndef DAF_BACKEND_H
#define DAF_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "../../daf/status.h"

typedef struct daf_backend {
    const char *name;    /* "host", "cuda", ...: shown in reports, never freed */
    void *self;          /* handed to every call */
    uint64_t unit_bytes; /* physical memory comes and goes by this many bytes: a power of two, at least 4096 */
    int is_costly;       /* 1: commit is expensive, so the arena commits ahead in adaptive steps */
    /* Take `num_bytes` (whole units) of addresses without memory behind them. */
    daf_status_t (*reserve)(void *self, uint64_t num_bytes, uint8_t **base);
    void (*unreserve)(void *self, uint8_t *base, uint64_t num_bytes);
    /* Both take whole units, inside one reservation. Committed memory may hold anything. */
    daf_status_t (*commit)(void *self, uint8_t *base, uint64_t num_bytes);
    daf_status_t (*decommit)(void *self, uint8_t *base, uint64_t num_bytes);
    /* The range, committed, may be backed by huge pages: those that lie inside it, so that none brings memory which is
     * not counted. Ends with decommit or move. NULL where pages have one size. */
    void (*prefer_huge)(void *self, uint8_t *base, uint64_t num_bytes);
    /* Give `to` the memory of `from`: both whole units and committed, `from` not afterwards; what they hold is lost.
     * NULL where memory cannot be moved, or not by units of 4096 bytes. */
    daf_status_t (*move)(void *self, uint8_t *from, uint8_t *to, uint64_t num_bytes);
    /* Between this memory and the process's own; both NULL where they are the same. Only spilling needs them. */
    daf_status_t (*copy_out)(void *self, void *to, const uint8_t *from, uint64_t num_bytes);
    daf_status_t (*copy_in)(void *self, uint8_t *to, const void *from, uint64_t num_bytes);
} daf_backend_t;

/* Anonymous private memory of this process. Lives for ever; safe for every arena at once. */
const daf_backend_t *daf_backend_host(void);

#endif
