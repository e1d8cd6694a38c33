/* Timing loops for benchmarks/pool/__main__.py: a call from Python costs more than what is measured, so the loop is in
 * C. This header is read by C and by cffi. */
#ifndef DAF_BENCH_H
#define DAF_BENCH_H

#include "arena.h"

typedef enum daf_bench_op {
    DAF_BENCH_RESERVE_RELEASE = 0, /* a stash comes and goes, pinned all the time */
    DAF_BENCH_LIFE = 1,            /* reserve, unpin (into the index), pin (out of it), release */
    DAF_BENCH_EVICT = 2,           /* drop one plane and index what is left */
    DAF_BENCH_ALLOC_FREE = 3,      /* a small block of the tensor zone */
} daf_bench_op_t;

/* Fill `arena` with unpinned stashes of `num_streams` one-page streams and random importance. They stay until
 * daf_bench_clear. */
daf_status_t daf_bench_fill(daf_arena_t *arena, uint64_t num_stashes, uint32_t num_streams, uint64_t seed);
void daf_bench_clear(daf_arena_t *arena);
/* Time `num_samples` times one operation, each alone, in nanoseconds; the clock's own cost (about 20 ns) is included.
 */
daf_status_t daf_bench_time(daf_arena_t *arena, daf_bench_op_t op, uint32_t num_samples, uint64_t seed,
                            double *nanoseconds);

#endif
