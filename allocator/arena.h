/* The arena: all memory that DAF manages on one device, under one budget.
 *
 *   budget       bytes that may be resident
 *   resident     bytes with physical memory behind them
 *   tensor zone  contiguous extents for ordinary tensors, 64-byte aligned
 *   plane zone   fixed pages for encoded activations
 *   stash        one encoded activation: up to DAF_MAX_STREAMS streams, each on pages of its own
 *   stream       a byte string; stream 0 is never dropped, the last live one is dropped first
 *   pinned       a stash in use (being encoded or decoded): nothing is dropped from it
 *   floor        the number of streams below which a stash is never cut
 *   cached       resident bytes that serve nobody now: free extents, free pages, gaps between small blocks
 *   importance   what the loss of a stream would cost; per byte it frees, it orders eviction; ties: the older first
 *
 *      resident = tensor + plane + cached            at every moment outside the lock
 *
 * Threads: every function may be called from any thread at any time unless it says otherwise; one lock per arena, never
 * held while waiting for anything but the zones' memory and the spill file, nor during a callback. Fork: the child has
 * a private copy of the arena, without what was spilled, and publishes nothing. This header is read by C and by cffi.
 */
#ifndef DAF_ARENA_H
#define DAF_ARENA_H

#include "os/backend.h"

#define DAF_MAX_STREAMS 12
#define DAF_MAX_SLOTS 4096
#define DAF_DEFAULT_PAGE_BYTES 4096
#define DAF_MIN_PAGE_BYTES 512
#define DAF_MIN_BUDGET_BYTES 65536

typedef struct daf_arena daf_arena_t;
typedef struct daf_stash daf_stash_t;

typedef struct daf_arena_config {
    uint64_t budget_bytes;
    uint64_t reserve_bytes;       /* addresses per zone; 0: several times the machine's memory */
    const daf_backend_t *backend; /* NULL: the host's */
    const char *spill_dir;        /* NULL: never spill; copied */
    uint32_t page_bytes;          /* 0: the default */
} daf_arena_config_t;

/* What a coder needs to find a stash's bytes: byte o of stream s is pages[first_page[s] + o / page_bytes][o %
 * page_bytes]. */
typedef struct daf_stash_view {
    uint8_t *const *pages;
    uint32_t page_bytes;
    uint32_t num_streams; /* live ones */
    uint32_t first_page[DAF_MAX_STREAMS];
} daf_stash_view_t;

typedef struct daf_stash_spec {
    uint64_t stream_bytes[DAF_MAX_STREAMS];
    double importance[DAF_MAX_STREAMS]; /* cost of losing stream s; [0] is not used */
    uint32_t num_streams;
    uint32_t floor_streams; /* at least 1 */
} daf_stash_spec_t;

typedef enum daf_outcome_state { DAF_APPLIED = 1, DAF_PENDING = 2, DAF_REFUSED = 3 } daf_outcome_state_t;

typedef struct daf_outcome {
    uint32_t state;       /* daf_outcome_state_t */
    uint64_t least_bytes; /* the smallest budget that would do, as far as the arena knows */
    char reason[112];
} daf_outcome_t;

/* Called without the arena's lock when a request would fail: free what you hold back, return the bytes you freed. */
typedef uint64_t (*daf_reclaim_fn)(void *context, uint64_t wanted_bytes);

/* Called without the arena's lock, in the thread that asked, when a request does not fit after cached memory is used
 * and before anything is dropped. `missing_bytes` are still to be found. More than 0: something may have been freed,
 * try again. Requests that the callback itself makes do not call it. */
typedef int (*daf_pressure_fn)(void *context, uint64_t missing_bytes);

daf_status_t daf_arena_open(const daf_arena_config_t *config, daf_arena_t **arena);

/* Ends publishing. Memory goes with the last live tensor or stash, so both may outlive the call: of them, freeing,
 * pinning, unpinning and releasing stay allowed. No other function may be called afterwards. */
void daf_arena_close(daf_arena_t *arena);

/* Releases every stash, pinned or not: all handles to them are dead. */
void daf_arena_clear(daf_arena_t *arena);

/* Tensor zone. 0 bytes count as 1. Blocks are aligned to 64 bytes, from 4 KiB on to 4096. */
daf_status_t daf_arena_alloc(daf_arena_t *arena, uint64_t num_bytes, void **block);
daf_status_t daf_arena_free(daf_arena_t *arena, void *block);
void daf_arena_range(const daf_arena_t *arena, uintptr_t *begin, uintptr_t *end); /* addresses of the tensor zone */
int daf_arena_owns(const daf_arena_t *arena, const void *pointer);     /* 1: inside the tensor zone; no lock */
uint64_t daf_arena_block_bytes(daf_arena_t *arena, const void *block); /* usable bytes; 0: not a live block */
void daf_arena_set_reclaim(daf_arena_t *arena, daf_reclaim_fn reclaim, void *context);
/* NULL: nobody. A callback that has begun may still be running when this returns. A forked child has none. */
void daf_arena_set_pressure(daf_arena_t *arena, daf_pressure_fn pressure, void *context);
/* Call it once more, with 0 missing bytes, as soon as a tensor makes more than half of the budget live; 0: no longer.
 */
void daf_arena_want_half(daf_arena_t *arena, int is_wanted);
/* No callback of any arena begins from now on; waits some seconds for those that run in other threads. For the end of
 * the process. */
void daf_pressure_stop(void);

/* Plane zone. A reserved stash is pinned once. The view's address is stable; its content may be read while pinned. */
daf_status_t daf_stash_reserve(daf_arena_t *arena, const daf_stash_spec_t *spec, uint32_t slot_id, uint64_t raw_bytes,
                               daf_stash_t **stash);
daf_status_t daf_stash_pin(daf_arena_t *arena, daf_stash_t *stash); /* may bring spilled pages back */
daf_status_t daf_stash_unpin(daf_arena_t *arena, daf_stash_t *stash);
daf_status_t daf_stash_release(daf_arena_t *arena,
                               daf_stash_t *stash); /* pinned or not; the handle is dead afterwards */
daf_status_t daf_stash_set_importance(daf_arena_t *arena, daf_stash_t *stash, const double *importance);
const daf_stash_view_t *daf_stash_view(const daf_stash_t *stash);
uint64_t daf_stash_bytes(daf_arena_t *arena, const daf_stash_t *stash); /* of its live pages, in memory or spilled */

/* A larger budget holds at once. A smaller one drops what can be dropped now; the rest goes as it is freed (pending).
 * It is refused when the last training step could not have run in it. `force`: never refuse. */
void daf_arena_set_budget(daf_arena_t *arena, uint64_t num_bytes, int force, daf_outcome_t *outcome);
/* Give cached memory back to the system, at most `max_bytes`; returns how much. */
uint64_t daf_arena_trim(daf_arena_t *arena, uint64_t max_bytes);
/* Evict up to `max_count` planes now; returns how many. */
uint32_t daf_arena_evict(daf_arena_t *arena, uint32_t max_count);
uint64_t daf_arena_profiles_asked(const daf_arena_t *arena); /* how often a watcher asked for a profile */
int daf_arena_is_paused(const daf_arena_t *arena);           /* compression paused by command */
void daf_arena_set_paused(daf_arena_t *arena, int is_paused);

/* Numbers that the arena cannot know and shows for those who do; 0 until told. Any thread, no lock. */
typedef enum daf_told {
    DAF_TOLD_PARAMETER_BYTES = 0,
    DAF_TOLD_GRADIENT_BYTES,
    DAF_TOLD_OPTIMIZER_BYTES,
    DAF_TOLD_EXPECTED_ERROR,
    DAF_TOLD_MEASURED_ERROR,
    DAF_TOLD_OVERHEAD_SECONDS,
    DAF_NUM_TOLD
} daf_told_t;
void daf_arena_tell(daf_arena_t *arena, daf_told_t what, double value);
/* Saved tensors without a stash come (positive) or go: what plain training would hold for them, and what is held. */
void daf_arena_count_saved(daf_arena_t *arena, int64_t raw_bytes, int64_t kept_bytes);
void daf_arena_step(daf_arena_t *arena, double seconds); /* one training step ended */
/* Walks every structure; 1: all agree. `why` (may be NULL) gets the first difference. O(everything). */
int daf_arena_is_valid(daf_arena_t *arena, char *why, uint64_t why_bytes);
/* What is held by whom, and which budget would hold `num_bytes` more. For the message of an out-of-memory error. */
void daf_arena_report(daf_arena_t *arena, uint64_t num_bytes, char *text, uint64_t text_bytes);

/* What is known beyond the arena of the step that ran out of memory. */
typedef struct daf_advice {
    uint64_t budget_bytes; /* in: the least that the arena knows of; out: the least for the whole step */
    char path[512];        /* a file with more; empty: none */
} daf_advice_t;
/* Called like a pressure callback: without a lock, in the thread whose request failed. */
typedef void (*daf_advise_fn)(daf_arena_t *arena, uint64_t num_bytes, daf_advice_t *advice);
void daf_set_advise(daf_advise_fn advise); /* for all arenas of the process; NULL: none */
/* The report of a request that has failed, with advice. */
void daf_arena_explain(daf_arena_t *arena, uint64_t num_bytes, char *text, uint64_t text_bytes);

/* Statistics: cell i belongs to field i. A cell is a uint64_t or a double, as its field says. */
typedef struct daf_field {
    char name[48];
    char unit[16];
    char help[112];
    uint32_t kind; /* 0 counter, 1 gauge */
    uint32_t type; /* 0 unsigned integer, 1 double, 2 text */
    uint32_t offset;
    uint32_t num_bytes;
} daf_field_t;

uint32_t daf_stats_num_fields(void);
const daf_field_t *daf_stats_fields(void);
void daf_arena_stats(daf_arena_t *arena, uint64_t *cells);
void daf_arena_reset_peaks(daf_arena_t *arena);

/* Publishing: see stats_page.h. `identity` is a JSON text, copied. The file name is made of pid and start time inside
 * `folder`. */
daf_status_t daf_arena_publish(daf_arena_t *arena, const char *folder, const char *identity);
const char *daf_arena_page_path(const daf_arena_t *arena); /* "" when not published; lives as long as the arena */
void daf_arena_unpublish(daf_arena_t *arena);              /* the page says that the run has ended */
uint32_t daf_arena_page_bytes(const daf_arena_t *arena);   /* of the plane zone */

typedef struct daf_slot_row {
    const char *name, *op, *codec; /* NULL: leave as it is */
    double bits, importance, fidelity;
    uint64_t raw_bytes, stored_bytes;
} daf_slot_row_t;
void daf_arena_slot(daf_arena_t *arena, uint32_t slot_id, const daf_slot_row_t *row);

uint32_t daf_event_num_kinds(void);
const char *daf_event_kind(uint32_t kind);
void daf_arena_event(daf_arena_t *arena, uint32_t kind, uint32_t slot_id, uint64_t num_bytes, double value,
                     const char *text);
void daf_arena_flush(daf_arena_t *arena); /* publish now instead of at the next heartbeat */

#endif
