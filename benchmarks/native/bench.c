/* Timing loops: see bench.h. */
#define _GNU_SOURCE
#include "bench.h"

#include <stdbool.h>
#include <time.h>

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static daf_stash_spec_t random_spec(const daf_arena_t *arena, uint32_t num_streams, uint64_t *random) {
    daf_stash_spec_t spec = {.num_streams = num_streams, .floor_streams = 1};
    double cost = (double)(next_random(random) >> 11);
    for (uint32_t i = 0; i < num_streams; i++) {
        spec.stream_bytes[i] = daf_arena_page_bytes(arena);
        spec.importance[i] = cost / (double)(i + 1); /* later planes matter less */
    }
    return spec;
}

daf_status_t daf_bench_fill(daf_arena_t *arena, uint64_t num_stashes, uint32_t num_streams, uint64_t seed) {
    uint64_t random = seed | 1;
    for (uint64_t i = 0; i < num_stashes; i++) {
        daf_stash_spec_t spec = random_spec(arena, num_streams, &random);
        daf_stash_t *stash;
        daf_status_t status = daf_stash_reserve(arena, &spec, (uint32_t)(i % 64), 0, &stash);
        if (status == DAF_OK) status = daf_stash_unpin(arena, stash);
        if (status != DAF_OK) return status;
    }
    return DAF_OK;
}

void daf_bench_clear(daf_arena_t *arena) {
    daf_arena_clear(arena);
}

static daf_status_t live_once(daf_arena_t *arena, const daf_stash_spec_t *spec, bool with_index) {
    daf_stash_t *stash;
    daf_status_t status = daf_stash_reserve(arena, spec, 0, 0, &stash);
    if (status != DAF_OK) return status;
    if (with_index) {
        daf_stash_unpin(arena, stash);
        status = daf_stash_pin(arena, stash);
    }
    daf_stash_release(arena, stash);
    return status;
}

static daf_status_t run_once(daf_arena_t *arena, daf_bench_op_t op, const daf_stash_spec_t *spec, uint64_t num_bytes) {
    void *block;
    switch (op) {
    case DAF_BENCH_RESERVE_RELEASE:
        return live_once(arena, spec, false);
    case DAF_BENCH_LIFE:
        return live_once(arena, spec, true);
    case DAF_BENCH_EVICT:
        return daf_arena_evict(arena, 1) == 1 ? DAF_OK : DAF_INVALID;
    default:
        if (daf_arena_alloc(arena, num_bytes, &block) != DAF_OK) return DAF_OUT_OF_MEMORY;
        return daf_arena_free(arena, block);
    }
}

daf_status_t daf_bench_time(daf_arena_t *arena, daf_bench_op_t op, uint32_t num_samples, uint64_t seed,
                            double *nanoseconds) {
    uint64_t random = seed | 1;
    for (uint32_t i = 0; i < num_samples; i++) {
        daf_stash_spec_t spec = random_spec(arena, 3, &random);
        uint64_t num_bytes = 1 + next_random(&random) % 4096, start = now();
        daf_status_t status = run_once(arena, op, &spec, num_bytes);
        nanoseconds[i] = (double)(now() - start);
        if (status != DAF_OK) return status;
    }
    return DAF_OK;
}
