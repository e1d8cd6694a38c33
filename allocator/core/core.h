/* What the files of the arena share. Everything here is guarded by the arena's lock unless it says otherwise.
 *
 *   granule   4096 bytes: extents of the tensor zone start and end on granules
 *   unit      what the backend commits by (4096 on the host, 2 MiB on a GPU): a whole number of granules
 *   dirty     free and committed: may be handed out at once
 *   clean     free and not committed: costs budget, and a page fault or a driver call, before use
 *   slab      a live extent cut into small blocks of one size
 *   block     512 pages of the plane zone
 *   hole      addresses just committed and not touched yet: memory from elsewhere may be moved there
 *   droppable bytes that eviction could free now: streams above the floor of stashes that are not pinned
 */
#ifndef DAF_CORE_H
#define DAF_CORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "arena.h"
#include "core/assert.h"
#include "core/tree.h"
#include "os/os.h"

#define DAFI_GRANULE 4096u
#define DAFI_SMALL_MAX 8192u /* larger requests get an extent of their own */
#define DAFI_SLAB_BYTES 65536u
#define DAFI_NUM_CLASSES 28u
#define DAFI_BLOCK_PAGES 512u
#define DAFI_BLOCK_WORDS 8u
#define DAFI_INLINE_PAGES 8u
#define DAFI_LOOK_STEPS 4u         /* between looks at unused memory */
#define DAFI_LARGE_STEPS 64u       /* an eighth or more of all memory waits no longer than this */
#define DAFI_MAX_PATIENCE 4096u    /* steps */
#define DAFI_MIN_MOVE_BYTES 65536u /* less is not worth a system call and a mapping of its own */
#define DAFI_MAX_RUNS 64u
#define DAFI_LARGE_EVENT_BYTES (1u << 20) /* smaller requests leave no event: the ring would show nothing else */

static inline uint64_t dafi_round_up(uint64_t value, uint64_t step) {
    return (value + step - 1) / step * step;
}
static inline uint64_t dafi_min(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t dafi_max(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Records by number in address space that is taken at once and touched as it fills: never moved, never copied. Record 0
 * is not given out. A free record's first four bytes link to the next free one. */
typedef struct dafi_table {
    uint8_t *base;
    uint32_t stride, capacity;
    uint32_t num_used; /* records ever given out, 0 included */
    uint32_t free_head;
} dafi_table_t;

bool dafi_table_open(dafi_table_t *table, uint32_t stride, uint32_t capacity);
void dafi_table_close(dafi_table_t *table);
uint32_t dafi_table_take(dafi_table_t *table);                  /* 0: full */
bool dafi_table_has(const dafi_table_t *table, uint32_t count); /* so many can be taken */
void dafi_table_give(dafi_table_t *table, uint32_t id);
static inline void *dafi_table_at(const dafi_table_t *table, uint32_t id) {
    return table->base + (size_t)id * table->stride;
}

/* Which of many blocks have something: find the first or last in three steps. */
typedef struct dafi_bitmap {
    uint64_t *level[3]; /* [0]: one bit a block; a bit of the next says whether a word below is not zero */
    uint32_t num_bits;
} dafi_bitmap_t;

bool dafi_bitmap_open(dafi_bitmap_t *map, uint32_t num_bits);
void dafi_bitmap_close(dafi_bitmap_t *map);
void dafi_bitmap_assign(dafi_bitmap_t *map, uint32_t bit, bool value);
bool dafi_bitmap_get(const dafi_bitmap_t *map, uint32_t bit);
uint32_t dafi_bitmap_first(const dafi_bitmap_t *map); /* num_bits: none */
uint32_t dafi_bitmap_last(const dafi_bitmap_t *map);

/* ---- tensor zone ---- */

typedef enum dafi_extent_state { DAFI_GONE = 0, DAFI_LIVE, DAFI_SLAB, DAFI_DIRTY, DAFI_CLEAN } dafi_extent_state_t;

typedef struct dafi_extent {
    uint32_t link; /* of the table's free list */
    uint32_t slab; /* its record, when state is DAFI_SLAB */
    uint64_t offset, num_bytes;
    uint32_t state;
} dafi_extent_t;

typedef struct dafi_slab {
    uint32_t link;
    uint32_t extent;
    uint32_t prev, next; /* among the slabs of its class with a free block */
    uint16_t class_id, num_blocks, num_free;
    uint64_t free_bits[DAFI_SLAB_BYTES / 64 / 64];
} dafi_slab_t;

/* Neighbouring extents of one kind of free state are always merged: span = sum of all extents, in address order. */
typedef struct dafi_tensors {
    uint8_t *base;
    uint64_t span_bytes;
    uint32_t *owner; /* granule -> extent, valid at the first and last granule of every extent, everywhere in slabs */
    uint64_t owner_bytes; /* size of that mapping */
    dafi_table_t extents;
    dafi_table_t nodes; /* node i orders extent i in `dirty` or `clean`: key bytes, tie offset */
    dafi_tree_t dirty, clean;
    dafi_table_t slabs;
    uint32_t partial[DAFI_NUM_CLASSES]; /* slabs with a free block */
    uint32_t idle[DAFI_NUM_CLASSES];    /* the one among them with no live block, kept for the next request; 0: none */
    uint64_t live_bytes;                /* handed out, rounded to block sizes */
    uint64_t slack_bytes;               /* in slabs, not handed out */
    uint64_t idle_bytes;                /* of these, in idle slabs: can be given back */
    uint64_t dirty_bytes;
    uint64_t trimmable_bytes; /* whole units inside dirty extents */
    uint64_t num_live;        /* blocks */
    uint64_t top_bytes;       /* highest offset ever committed */
} dafi_tensors_t;

/* ---- plane zone ---- */

typedef struct dafi_block {
    uint64_t used[DAFI_BLOCK_WORDS]; /* a subset of committed */
    uint64_t committed[DAFI_BLOCK_WORDS];
} dafi_block_t;

typedef struct dafi_pages {
    uint8_t *base;
    uint64_t span_bytes;
    uint32_t page_bytes, page_shift;
    uint32_t unit_pages; /* committed together: at least 1, at most a block */
    uint32_t num_blocks, top_block;
    dafi_block_t *blocks;
    uint64_t blocks_bytes;
    dafi_bitmap_t dirty; /* blocks with free committed pages */
    dafi_bitmap_t clean; /* blocks with uncommitted pages */
    uint64_t num_used, num_dirty;
} dafi_pages_t;

struct daf_stash {
    daf_stash_view_t view; /* first, and 64 bytes: its address is what coders get */
    float importance[DAF_MAX_STREAMS];
    uint32_t waste_bytes[DAF_MAX_STREAMS]; /* behind each stream's end on its last page */
    uint8_t **pages;                       /* inline_pages, or from malloc */
    uint64_t age;                          /* order of reservation; 0: this record is free */
    uint64_t raw_bytes;
    uint32_t id, slot_id;
    uint32_t num_pages; /* of the live streams */
    uint32_t num_pins;
    uint8_t floor_streams;
    uint8_t is_indexed; /* in the eviction index */
    uint8_t is_spilled; /* its pages are in the spill file */
    uint8_t *inline_pages[DAFI_INLINE_PAGES];
};

typedef enum dafi_reason {
    DAFI_FOR_TENSOR = 0,
    DAFI_FOR_STASH,
    DAFI_FOR_BUDGET,
    DAFI_BY_HAND,
    DAFI_NUM_REASONS
} dafi_reason_t;

typedef struct dafi_counters {
    uint64_t allocs, frees, reserves, releases;
    uint64_t evictions[DAFI_NUM_REASONS], evicted_bytes;
    uint64_t spills, restores, spilled_bytes;
    uint64_t pressure_calls, pressure_freed_bytes;
    uint64_t oom, budget_raises, grows, grown_bytes, trims, trimmed_bytes, moves, moved_bytes, steps;
    uint64_t lost_slots; /* rows beyond the table */
    double step_seconds, step_seconds_total;
} dafi_counters_t;

typedef struct dafi_peaks {
    uint64_t resident, tensor, plane, raw, held;
    uint64_t live;  /* tensors and planes together */
    uint64_t saved; /* planes and kept tensors together */
    uint64_t firm;  /* held, less what compressing kept tensors would free */
} dafi_peaks_t;

typedef struct dafi_slot {
    uint64_t live_bytes, live_stashes, evictions, evicted_bytes;
} dafi_slot_t;

/* Cached memory that no request needed for some steps is given back. Every few steps the arena looks at the least that
 * was cached since the last look; what stays unused for `patience_steps` goes, and much of it sooner. If the memory is
 * wanted again right away, patience doubles, so that a steady training does not pay page faults for nothing. */
typedef struct dafi_decay {
    uint64_t low_cached_bytes; /* least cached since the last look */
    uint64_t unused_bytes;     /* least of all looks that found something */
    uint64_t unused_steps;     /* for so many steps */
    uint64_t patience_steps;
    uint64_t last_step;     /* of the last look */
    uint64_t trimmed_bytes; /* given back at the last look */
    uint64_t grown_bytes;   /* counts.grown_bytes then */
} dafi_decay_t;

struct dafi_page;

/* resident = tensors.live + tensors.slack + tensors.dirty + (pages.num_used + pages.num_dirty) * page_bytes */
struct daf_arena {
    pthread_mutex_t lock;
    daf_backend_t backend;
    uint64_t budget_bytes, initial_budget_bytes, resident_bytes, droppable_bytes, raw_bytes;
    dafi_tensors_t tensors;
    dafi_pages_t pages;
    dafi_table_t stashes;
    dafi_table_t index_nodes;
    dafi_tree_t index;      /* evictable stashes by importance per byte of their last stream, then age */
    uint64_t indexed_bytes; /* planes of all stashes in the index: droppable, or at best spillable */
    uint64_t num_stashes, next_age;
    uint64_t stream_bytes[DAF_MAX_STREAMS];     /* plane bytes by stream */
    uint64_t waste_bytes;                       /* of all live streams */
    dafi_slot_t *slots;                         /* DAF_MAX_SLOTS; changed through dafi_slot_change */
    uint64_t changed_slots[DAF_MAX_SLOTS / 64]; /* a bit each: since the stats page was last staged */
    dafi_counters_t counts;
    dafi_peaks_t peaks;           /* since the arena was opened, or since they were reset */
    dafi_peaks_t step, last_step; /* of the step that goes on, and of the last whole one */
    dafi_decay_t decay;
    dafi_process_t process;               /* as of the last time somebody looked, which is never under the lock */
    uint64_t other_raw_bytes, kept_bytes; /* of saved tensors without a stash: in plain training, and here */
    uint64_t num_moves;                   /* since the zones were last mapped afresh */
    uint64_t growth_bytes;                /* commit ahead by this much; adaptive */
    uint64_t pending_bytes;               /* a budget still to be reached; 0: none */
    uint64_t grace_bytes;                 /* the budget before it was lowered, for what a step has begun; 0: none */
    uint64_t ceiling_bytes;               /* how far a budget that a watcher lowered may give way; 0: not at all */
    daf_reclaim_fn reclaim;
    void *reclaim_context;
    daf_pressure_fn pressure;
    void *pressure_context;
    bool wants_half;        /* true until the owner was told that more than half of the budget is live */
    bool spares_planes;     /* true during an attempt that may take cached memory only */
    uint64_t missing_bytes; /* what the last such attempt lacked */
    uint32_t num_asking;    /* requests that wait for a callback */
    _Atomic int is_paused;
    _Atomic uint64_t num_profiles_asked;
    _Atomic double told[DAF_NUM_TOLD];
    bool is_closed;
    struct dafi_page *page;                   /* NULL: not published */
    struct daf_arena *next;                   /* among all open arenas, for fork; guarded by the registry's lock */
    int spill_file;                           /* -1: none */
    uint32_t num_spill_cells, num_free_cells; /* a cell: room for one page in the spill file */
    uint32_t *free_cells;                     /* a stack */
    uint64_t free_cells_capacity;
    uint8_t *spill_buffer; /* one page, where the backend's memory cannot be read directly */
};

static inline uint64_t dafi_plane_bytes(const daf_arena_t *arena) {
    return arena->pages.num_used << arena->pages.page_shift;
}
static inline uint64_t dafi_cached_bytes(const daf_arena_t *arena) {
    return arena->resident_bytes - arena->tensors.live_bytes - dafi_plane_bytes(arena);
}
static inline dafi_slot_t *dafi_slot_change(daf_arena_t *arena, uint32_t slot_id) {
    arena->changed_slots[slot_id / 64] |= UINT64_C(1) << slot_id % 64;
    return &arena->slots[slot_id];
}
/* What no eviction can free now. */
static inline uint64_t dafi_held_bytes(const daf_arena_t *arena) {
    return arena->tensors.live_bytes + arena->tensors.slack_bytes - arena->tensors.idle_bytes +
           dafi_plane_bytes(arena) - arena->droppable_bytes;
}

/* remap.c */
typedef struct dafi_run {
    uint8_t *at;
    uint64_t num_bytes;
} dafi_run_t;
typedef struct dafi_hole {
    dafi_run_t runs[DAFI_MAX_RUNS];
    uint32_t num_runs;
} dafi_hole_t;
void dafi_hole_add(dafi_hole_t *hole, uint8_t *at, uint64_t num_bytes);
/* Move free memory into the hole, as far as that goes, and give the rest to the system. The hole may be NULL. */
daf_status_t dafi_give_back(daf_arena_t *arena, uint8_t *from, uint64_t num_bytes, dafi_hole_t *hole);
/* `num_bytes` were just committed: take as much from what is cached, from the tensor zone and maybe from the pages. */
void dafi_fill(daf_arena_t *arena, dafi_hole_t *hole, uint64_t num_bytes, bool with_pages);
void dafi_renew(daf_arena_t *arena, uint8_t *base,
                uint64_t num_bytes);       /* free addresses: drop their memory and seams */
void dafi_moves_renew(daf_arena_t *arena); /* at a step's end: few mappings again, if there are many */

/* extents.c */
daf_status_t dafi_tensors_open(daf_arena_t *arena, uint64_t span_bytes);
void dafi_tensors_close(daf_arena_t *arena);
uint32_t dafi_extent_alloc(daf_arena_t *arena, uint64_t num_bytes, uint32_t state, daf_status_t *status);
void dafi_extent_free(daf_arena_t *arena, uint32_t id);
uint64_t dafi_tensors_trim(daf_arena_t *arena, uint64_t max_bytes, uint32_t keep);
uint64_t dafi_tensors_lend(daf_arena_t *arena, uint64_t max_bytes, dafi_hole_t *hole);
void dafi_tensors_renew(daf_arena_t *arena);
uint64_t dafi_extent_trimmable(const daf_arena_t *arena, uint32_t id);
static inline dafi_extent_t *dafi_extent(const dafi_tensors_t *zone, uint32_t id) {
    return (dafi_extent_t *)dafi_table_at(&zone->extents, id);
}

/* small.c */
/* What a request takes: a small one that found no block, a whole slab. */
uint64_t dafi_taken_bytes(uint64_t num_bytes);
void *dafi_small_alloc(daf_arena_t *arena, uint64_t num_bytes, daf_status_t *status);
void dafi_small_trim(daf_arena_t *arena); /* idle slabs become dirty extents */
daf_status_t dafi_small_free(daf_arena_t *arena, dafi_extent_t *extent, uint64_t offset);
uint32_t dafi_small_block_bytes(const dafi_tensors_t *zone, const dafi_extent_t *extent,
                                uint64_t offset); /* 0: not live */

/* plane_pages.c */
daf_status_t dafi_pages_open(daf_arena_t *arena, uint64_t span_bytes, uint32_t page_bytes);
void dafi_pages_close(daf_arena_t *arena);
bool dafi_pages_commit(daf_arena_t *arena, uint64_t num_pages, dafi_hole_t *hole); /* make that many more dirty */
void dafi_pages_take(daf_arena_t *arena, uint8_t **pages, uint32_t num_pages);     /* so many must be dirty */
void dafi_pages_give(daf_arena_t *arena, uint8_t *const *pages, uint32_t num_pages);
uint64_t dafi_pages_trim(daf_arena_t *arena, uint64_t max_bytes);
uint64_t dafi_pages_lend(daf_arena_t *arena, uint64_t max_bytes, dafi_hole_t *hole);

/* stash.c */
uint32_t dafi_stash_num_pages(const daf_stash_t *stash, uint32_t stream);
void dafi_stash_index(daf_arena_t *arena, daf_stash_t *stash);
void dafi_stash_unindex(daf_arena_t *arena, daf_stash_t *stash);
void dafi_stash_count_planes(daf_arena_t *arena, const daf_stash_t *stash, int sign);
static inline daf_stash_t *dafi_stash(const daf_arena_t *arena, uint32_t id) {
    return (daf_stash_t *)dafi_table_at(&arena->stashes, id);
}

/* valid.c */
bool dafi_is_valid(const daf_arena_t *arena, char *why, uint64_t why_bytes); /* walks everything; under the lock */

/* evict.c */
bool dafi_evict_one(daf_arena_t *arena, dafi_reason_t reason); /* false: nothing may be dropped */

/* relief.c */
/* One attempt of a request, under the lock; leaves nothing behind when it fails. */
typedef daf_status_t (*dafi_attempt_fn)(daf_arena_t *arena, void *request);
/* Attempt a request for `num_bytes`, with more and more relief. Called with the lock, which is let go of in between. */
daf_status_t dafi_request(daf_arena_t *arena, dafi_attempt_fn attempt, void *request, uint64_t num_bytes);
void dafi_tell_half(daf_arena_t *arena); /* called with the lock, which is let go of in between */
static inline bool dafi_is_half_live(const daf_arena_t *arena) {
    return arena->wants_half && arena->tensors.live_bytes + dafi_plane_bytes(arena) > arena->budget_bytes / 2;
}
void dafi_relief_orphan(daf_arena_t *arena); /* in a forked child: nobody is asked */
/* Around every call out of C. False: not now; this thread is in such a call already, or the process ends. */
bool dafi_call_begin(void);
void dafi_call_end(void);

/* budget.c */
/* Could room be made for `num_bytes` more in the tensor zone, without giving back the dirty extent `keep`? */
bool dafi_could_admit(daf_arena_t *arena, uint64_t num_bytes, uint32_t keep);
bool dafi_make_room(daf_arena_t *arena, uint64_t num_bytes, uint32_t keep);
/* Have `num_pages` dirty pages in the plane zone. */
bool dafi_admit_pages(daf_arena_t *arena, uint64_t num_pages);
uint64_t dafi_shrink_to(daf_arena_t *arena, uint64_t target_bytes, dafi_reason_t reason); /* returns bytes still over */
void dafi_after_free(daf_arena_t *arena);        /* give back at once while over budget */
dafi_peaks_t dafi_now(const daf_arena_t *arena); /* every measure that has a peak, as of now */
void dafi_commands_step(daf_arena_t *arena);     /* under its lock, after a step: what waited for it */
void dafi_note(daf_arena_t *arena);              /* peaks and low marks, after every change */
uint64_t dafi_least_budget(const daf_arena_t *arena, uint64_t num_bytes); /* that would hold so much more now */
uint64_t dafi_growth(daf_arena_t *arena, uint64_t num_bytes, uint64_t limit_bytes);
void dafi_budget_set(daf_arena_t *arena, uint64_t num_bytes, bool force, daf_outcome_t *outcome);
void dafi_budget_end_grace(daf_arena_t *arena); /* a step has ended: the next one fits the budget */
bool dafi_budget_settle(daf_arena_t *arena);    /* true: a pending budget has just been reached */
/* True: a budget that was lowered from outside has given way to `num_bytes` more, which bits could not pay for. */
bool dafi_budget_give_way(daf_arena_t *arena, uint64_t num_bytes);
void dafi_decay_start(daf_arena_t *arena);
void dafi_decay(daf_arena_t *arena); /* now and then: give back what stayed cached all the time */

/* spill.c */
daf_status_t dafi_spill_open(daf_arena_t *arena, const char *folder);
void dafi_spill_close(daf_arena_t *arena);
void dafi_spill_orphan(daf_arena_t *arena); /* in a forked child: leave the parent's file alone */
bool dafi_spill_one(daf_arena_t *arena);    /* false: no spill file, or nothing left to spill */
bool dafi_spill_restore(daf_arena_t *arena, daf_stash_t *stash);
void dafi_spill_forget(daf_arena_t *arena, daf_stash_t *stash);

/* events.c, stats_page.c, slot_rows.c: nothing happens when the arena is not published. */
typedef enum dafi_event {
    DAFI_EVENT_ALLOC = 0,
    DAFI_EVENT_FREE,
    DAFI_EVENT_STASH,
    DAFI_EVENT_RELEASE,
    DAFI_EVENT_EVICT,
    DAFI_EVENT_SPILL,
    DAFI_EVENT_RESTORE,
    DAFI_EVENT_RESIZE,
    DAFI_EVENT_OOM,
    DAFI_EVENT_STEP,
    DAFI_EVENT_TRIM,
    DAFI_EVENT_PAUSE,
    DAFI_EVENT_RESUME,
    DAFI_EVENT_PLAN,
    DAFI_EVENT_FIDELITY,
    DAFI_EVENT_WARNING,
    DAFI_EVENT_NOTE,
    DAFI_NUM_EVENTS
} dafi_event_t;
void dafi_event(daf_arena_t *arena, dafi_event_t kind, uint32_t slot_id, uint64_t num_bytes, double value,
                const char *text);
void dafi_publish(daf_arena_t *arena); /* now instead of at the next beat; without the lock */
void dafi_page_close(daf_arena_t *arena);
void dafi_page_orphan(daf_arena_t *arena); /* in a forked child: let go of the parent's page */
void dafi_stats_collect(const daf_arena_t *arena, uint64_t *cells);

/* arena.c */
/* daf_arena_alloc and daf_arena_free that also tell the size of the block: the front doors count, and one lock is
 * enough. */
daf_status_t dafi_arena_take(daf_arena_t *arena, uint64_t num_bytes, void **block, uint64_t *block_bytes);
daf_status_t dafi_arena_give(daf_arena_t *arena, void *block, uint64_t *block_bytes);
void dafi_registry_add(daf_arena_t *arena);
void dafi_registry_remove(daf_arena_t *arena);
void dafi_lock(daf_arena_t *arena);
void dafi_unlock(daf_arena_t *arena);
void dafi_leave(daf_arena_t *arena); /* unlock; of a closed arena, the last to leave destroys it */

#endif
