/* Replaying a recorded trace against an arena or against malloc, timed call by call.
 *
 * What is handed out is touched once per 4 KiB outside the timed part, so that resident sizes mean what they say.
 * This header is read by C and by cffi.
 */
#ifndef DAF_REPLAY_H
#define DAF_REPLAY_H

#include "arena.h"

typedef struct daf_replay_op {
    uint32_t action; /* daf_trace_action_t */
    uint32_t id;     /* of the block or stash, below num_ids; an id is used again after it was freed */
    uint64_t num_bytes;
    uint32_t num_streams; /* of a stash: stream 0 gets a third plane's worth, the others the rest in equal parts */
    uint32_t padding;
} daf_replay_op_t;

typedef struct daf_replay_result {
    uint64_t num_failed;           /* requests that got no memory; their frees are skipped */
    uint64_t peak_allocated_bytes; /* highest sum of live requests */
    uint64_t live_bytes;           /* at the end */
    double seconds;                /* in the allocator, all calls together */
} daf_replay_result_t;

/* Run `ops` and note the nanoseconds of each in `nanoseconds` (may be NULL). `arena` NULL: malloc and free of this
 * process. Every block is freed at the end. DAF_SYSTEM: no memory for the books. Threads: one replay at a time per
 * arena. */
daf_status_t daf_replay(daf_arena_t *arena, const daf_replay_op_t *ops, uint64_t num_ops, uint32_t num_ids,
                        uint32_t *nanoseconds, daf_replay_result_t *result);

#endif
