#define _GNU_SOURCE
#include "replay.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "trace/trace.h"

/* A block, or a stash: which of the two, the arena's calls differ in. */
typedef struct item {
    void *block;
    daf_stash_t *stash;
    uint64_t num_bytes;
} item_t;

typedef struct replay {
    daf_arena_t *arena;
    item_t *items;
    uint64_t live_bytes;
    daf_replay_result_t *result;
} replay_t;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void touch(uint8_t *bytes, uint64_t num_bytes) {
    for (uint64_t offset = 0; offset < num_bytes; offset += 4096) ((volatile uint8_t *)bytes)[offset] = 1;
}

static void touch_stash(const daf_stash_t *stash, const daf_stash_spec_t *spec) {
    const daf_stash_view_t *view = daf_stash_view(stash);
    for (uint32_t s = 0; s < view->num_streams; s++)
        for (uint64_t offset = 0; offset < spec->stream_bytes[s]; offset += view->page_bytes)
            *(volatile uint8_t *)view->pages[view->first_page[s] + offset / view->page_bytes] = 1;
}

static void make_spec(const daf_replay_op_t *op, daf_stash_spec_t *spec) {
    uint32_t num_streams = op->num_streams < 1 ? 1 : op->num_streams;
    if (num_streams > DAF_MAX_STREAMS) num_streams = DAF_MAX_STREAMS;
    memset(spec, 0, sizeof(*spec));
    spec->num_streams = num_streams;
    spec->floor_streams = 1;
    uint64_t plane_bytes = num_streams == 1 ? 0 : op->num_bytes * 3 / (3 * (num_streams - 1) + 1);
    spec->stream_bytes[0] = op->num_bytes - plane_bytes * (num_streams - 1);
    for (uint32_t s = 1; s < num_streams; s++) {
        spec->stream_bytes[s] = plane_bytes;
        spec->importance[s] =
            (double)plane_bytes / (double)(1u << (2 * s)); /* each bit is worth a quarter of the last */
    }
}

static uint64_t take_block(replay_t *replay, const daf_replay_op_t *op, item_t *item) {
    uint64_t start = now();
    if (replay->arena == NULL) {
        if (posix_memalign(&item->block, 64, op->num_bytes) != 0) item->block = NULL;
    } else if (daf_arena_alloc(replay->arena, op->num_bytes, &item->block) != DAF_OK) {
        item->block = NULL;
    }
    uint64_t spent = now() - start;
    if (item->block != NULL) touch(item->block, op->num_bytes);
    return spent;
}

static uint64_t take_stash(replay_t *replay, const daf_replay_op_t *op, item_t *item) {
    daf_stash_spec_t spec;
    if (replay->arena == NULL) return take_block(replay, op, item);
    make_spec(op, &spec);
    uint64_t start = now();
    if (daf_stash_reserve(replay->arena, &spec, op->id % DAF_MAX_SLOTS, op->num_bytes, &item->stash) != DAF_OK)
        item->stash = NULL;
    uint64_t spent = now() - start;
    if (item->stash == NULL) return spent;
    touch_stash(item->stash, &spec);
    daf_stash_unpin(replay->arena, item->stash);
    return spent;
}

static uint64_t give(replay_t *replay, item_t *item) {
    uint64_t start = now();
    if (item->stash != NULL)
        daf_stash_release(replay->arena, item->stash);
    else if (item->block != NULL && replay->arena != NULL)
        daf_arena_free(replay->arena, item->block);
    else
        free(item->block);
    uint64_t spent = now() - start;
    replay->live_bytes -= item->num_bytes;
    *item = (item_t){0};
    return spent;
}

static uint64_t take(replay_t *replay, const daf_replay_op_t *op) {
    item_t *item = &replay->items[op->id];
    if (item->block != NULL || item->stash != NULL) give(replay, item); /* a trace that lost the free */
    uint64_t spent = op->action == DAF_TRACE_STASH ? take_stash(replay, op, item) : take_block(replay, op, item);
    if (item->block == NULL && item->stash == NULL) {
        replay->result->num_failed++;
        return spent;
    }
    item->num_bytes = op->num_bytes;
    replay->live_bytes += op->num_bytes;
    if (replay->live_bytes > replay->result->peak_allocated_bytes)
        replay->result->peak_allocated_bytes = replay->live_bytes;
    return spent;
}

static uint64_t run(replay_t *replay, const daf_replay_op_t *op) {
    if (op->action == DAF_TRACE_ALLOCATE || op->action == DAF_TRACE_STASH) return take(replay, op);
    if (op->action == DAF_TRACE_STEP) {
        if (replay->arena != NULL) daf_arena_step(replay->arena, 0.0);
        return 0;
    }
    return give(replay, &replay->items[op->id]);
}

daf_status_t daf_replay(daf_arena_t *arena, const daf_replay_op_t *ops, uint64_t num_ops, uint32_t num_ids,
                        uint32_t *nanoseconds, daf_replay_result_t *result) {
    replay_t replay = {arena, calloc(num_ids, sizeof(item_t)), 0, result};
    memset(result, 0, sizeof(*result));
    if (replay.items == NULL) return DAF_SYSTEM;
    uint64_t total = 0;
    for (uint64_t i = 0; i < num_ops; i++) {
        uint64_t spent = run(&replay, &ops[i]);
        total += spent;
        if (nanoseconds != NULL) nanoseconds[i] = spent > UINT32_MAX ? UINT32_MAX : (uint32_t)spent;
    }
    result->live_bytes = replay.live_bytes;
    result->seconds = (double)total * 1e-9;
    for (uint32_t id = 0; id < num_ids; id++) give(&replay, &replay.items[id]);
    free(replay.items);
    return DAF_OK;
}
