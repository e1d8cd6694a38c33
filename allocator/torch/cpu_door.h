/* The CPU front door: where torch's requests for CPU memory arrive, and go to the arena in service.
 *
 *   in service   the one arena that serves new requests; at most one at a time
 *   retired      an arena that was in service before and still has blocks out; those come back to it, however late
 *
 * The C++ shim (cpu_shim.cpp) calls alloc, owns, free and explain; Python opens and closes. A block belongs to the
 * arena that made it, found by its address. Threads: all at once. Fork: the child goes on with its private copy. This
 * header is read by C and by cffi.
 */
#ifndef DAF_DOOR_H
#define DAF_DOOR_H

#include "arena.h"
#include "stats/meter.h"

#define DAF_MAX_DOORS 64

/* Put `arena` into service in place of the one before. DAF_INVALID: DAF_MAX_DOORS arenas have blocks out. */
daf_status_t daf_door_open(daf_arena_t *arena);
/* Take the arena in service out of it. Its blocks stay good. */
void daf_door_close(void);
/* The same, if it is this one: to be called before an arena is closed. */
void daf_door_retire(const daf_arena_t *arena);
daf_arena_t *daf_door_arena(void); /* the one in service, or NULL */
int daf_door_is_open(void);        /* 1: there is one */

void *daf_door_alloc(size_t num_bytes); /* NULL: over budget after eviction, or none in service */
int daf_door_owns(const void *block);
void daf_door_free(void *block);
void daf_door_explain(size_t num_bytes, char *text, size_t text_bytes);

void daf_door_meter(daf_meter_t *copy); /* of all arenas together */
void daf_door_reset_peaks(void);

#endif
