/* The stats page and the command page: two small files per process, written by the process that trains and read by
 * whoever watches.
 *
 *   <pid>-<start>.stats                           written by C only
 *   +-----------------+ 0
 *   | header  256 B   |  magic, version, state, heartbeat, where the sections are
 *   +-----------------+ 256
 *   | identity        |  JSON text, zero-filled
 *   | field table     |  daf_field_t each: what the cells of `values` mean
 *   | values          |  sequence, then one 8-byte cell a field
 *   | column table    |  daf_field_t each: what the bytes of a slot row mean
 *   | slot rows       |  256 B each: sequence, then columns
 *   | event kinds     |  16 B names
 *   | event ring      |  128 B each; event id stands at (id - 1) % count
 *   | map             |  what the zones' addresses hold, 2 B a cell
 *   +-----------------+
 *
 *   <pid>-<start>.cmd                             requests written by watchers (under flock), outcomes by C
 *   | header 64 B | 16 requests of 64 B | 16 outcomes of 192 B |     generation g stands at g % 16
 *
 * Neither file is mapped: another process may cut it off at any time, and a mapping would then kill the training.
 *
 *   arena, under its lock ----> recent: rows and events as they come, in memory of our own
 *   heartbeat, every 25 ms ---> staged: what has changed is copied under the lock, and written to the file after it
 *
 * A file that was cut off is written whole again at the next beat. Sequences: odd while the group is being written,
 * even and larger afterwards; a reader copies, then looks whether the sequence was even and is unchanged, else tries
 * again. The writer never waits. All numbers little endian, 8-byte ones on multiples of 8.
 */
#ifndef DAF_STATS_PAGE_H
#define DAF_STATS_PAGE_H

#include "core/core.h"

#define DAFI_PAGE_VERSION 1u
#define DAFI_NUM_EVENTS_KEPT 4096u
#define DAFI_NUM_COMMANDS 16u
#define DAFI_IDENTITY_BYTES 7936u /* with the header two pages */
#define DAFI_MAP_CELLS 512u       /* a zone */
#define DAFI_HEARTBEAT_NS 25000000u

typedef struct dafi_section {
    uint32_t offset, stride, count, spare;
} dafi_section_t;

typedef enum dafi_page_state { DAFI_PAGE_OPENING = 0, DAFI_PAGE_LIVE = 1, DAFI_PAGE_FINISHED = 2 } dafi_page_state_t;

typedef struct dafi_page_header {
    char magic[8]; /* "DAFSTATS" */
    uint32_t version, header_bytes;
    uint64_t total_bytes;
    uint32_t state;
    uint32_t pid;
    uint64_t start_time;   /* of the process, clock ticks since boot: with the pid it names a process for ever */
    uint64_t opened_ns;    /* wall clock */
    uint64_t heartbeat_ns; /* monotonic clock of the machine */
    uint64_t closed_ns;    /* wall clock; 0: open */
    uint64_t num_events;   /* so many were written; the last has this id */
    dafi_section_t identity, fields, values, columns, slots, kinds, events, map;
} dafi_page_header_t;

typedef struct dafi_slot_record {
    uint64_t sequence; /* 0: never written */
    char name[112], op[32], codec[24];
    double bits, importance, fidelity;
    uint64_t raw_bytes, stored_bytes;                            /* as the engine says, per tensor */
    uint64_t live_bytes, live_stashes, evictions, evicted_bytes; /* as the arena knows */
} dafi_slot_record_t;

typedef struct dafi_event_record {
    uint64_t id; /* 0 while being written */
    uint64_t wall_ns;
    uint32_t kind, slot_id;
    uint64_t num_bytes;
    double value;
    char text[88];
} dafi_event_record_t;

typedef struct dafi_map_record {
    uint64_t sequence;
    uint64_t cell_bytes[2]; /* tensor zone, plane zone */
    uint64_t num_cells[2];
    uint8_t cells[2][DAFI_MAP_CELLS][2]; /* share in use, share free and committed; of 255; the rest is not committed */
} dafi_map_record_t;

typedef struct dafi_request {
    uint64_t generation;
    uint32_t kind; /* 1 budget, 2 pause, 3 profile, 4 budget at a step, 5 take back what waits for its step */
    uint32_t check;
    uint64_t value;
    uint64_t step; /* of kind 3 */
    uint64_t spare[4];
} dafi_request_t;

/* A budget that waits for its step, so that all ranks of a job change theirs in the same one. */
typedef struct dafi_scheduled {
    uint64_t generation; /* 0: none waits */
    uint64_t num_bytes, step;
    bool is_tried; /* its step has come: the outcome is to be told */
    daf_outcome_t outcome;
} dafi_scheduled_t;

typedef struct dafi_outcome_record {
    uint64_t sequence;
    uint64_t generation, state, least_bytes;
    char reason[160];
} dafi_outcome_record_t;

typedef struct dafi_command_page {
    char magic[8]; /* "DAFCMND1" */
    uint32_t version, count;
    uint64_t requested; /* the newest generation asked for */
    uint64_t done;      /* the newest generation dealt with */
    uint64_t spare[4];
    dafi_request_t requests[DAFI_NUM_COMMANDS];
    dafi_outcome_record_t outcomes[DAFI_NUM_COMMANDS];
} dafi_command_page_t;

struct dafi_page {
    dafi_page_header_t *recent; /* guarded by the arena's lock */
    dafi_scheduled_t scheduled; /* guarded by the arena's lock */
    dafi_page_header_t *staged; /* the file's content; this and all below guarded by write_lock */
    pthread_mutex_t write_lock; /* taken before the arena's lock, never after it */
    int file, command_file;
    uint64_t num_bytes;
    uint64_t staged_rows[DAF_MAX_SLOTS / 64]; /* a bit a row: to be written */
    uint64_t num_staged_events;               /* so many are in the file, or about to be */
    dafi_command_page_t commands;             /* requests as last read, outcomes as they shall be in the file */
    uint32_t changed_outcomes;                /* a bit each: to be written */
    char path[4096], command_path[4096];
    uint64_t pending_generation; /* the budget command that is not reached yet; 0: none */
    uint32_t num_garbled;        /* beats spent on a request that makes no sense */
    uint64_t map_ns;             /* when the map was written last */
    pthread_t heart;
    pthread_mutex_t heart_lock;
    pthread_cond_t heart_wake;
    bool has_heart, is_stopping;
};

static inline void *dafi_section_at(const dafi_page_header_t *page, const dafi_section_t *section, uint32_t index) {
    return (uint8_t *)(uintptr_t)page + section->offset + (size_t)index * section->stride;
}

/* stats_page.c */
/* Stage what has changed, apply commands, write: all that a beat does. Called without the arena's lock. */
void dafi_page_write(daf_arena_t *arena, bool with_map);

/* commands.c: read without the arena's lock, apply under it, write after it */
void dafi_commands_read(struct dafi_page *page);
void dafi_commands_apply(daf_arena_t *arena);
void dafi_commands_write(struct dafi_page *page);

/* slot_rows.c, events.c, map.c: stage under the arena's lock, write after it */
void dafi_rows_stage(daf_arena_t *arena);
void dafi_rows_write(struct dafi_page *page);
void dafi_columns_write(dafi_page_header_t *page);
void dafi_events_stage(daf_arena_t *arena, uint64_t *first_id);
void dafi_events_write(struct dafi_page *page, uint64_t first_id);
void dafi_kinds_write(dafi_page_header_t *page);
void dafi_zones_stage(daf_arena_t *arena); /* takes the arena's lock by itself, for a bounded time each */

/* heartbeat.c */
bool dafi_heart_start(daf_arena_t *arena);
void dafi_heart_stop(daf_arena_t *arena);

#endif
