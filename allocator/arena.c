/* Opening and closing, the tensor zone's front, and what fork needs. */
#define _GNU_SOURCE
#include "core/core.h"
#include "trace/trace_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STASHES (1u << 23)
#define MAX_SPAN_BYTES (UINT64_C(512) << 30)

void dafi_lock(daf_arena_t *arena) {
    pthread_mutex_lock(&arena->lock);
}
void dafi_unlock(daf_arena_t *arena) {
    pthread_mutex_unlock(&arena->lock);
}

static daf_status_t open_zones(daf_arena_t *arena, uint64_t span_bytes, uint32_t page_bytes) {
    daf_status_t status = dafi_tensors_open(arena, span_bytes);
    return status == DAF_OK ? dafi_pages_open(arena, span_bytes, page_bytes) : status;
}

static void destroy(daf_arena_t *arena) {
    dafi_registry_remove(arena);
    dafi_tensors_close(arena);
    dafi_pages_close(arena);
    dafi_table_close(&arena->stashes);
    dafi_table_close(&arena->index_nodes);
    dafi_spill_close(arena);
    free(arena->slots);
    pthread_mutex_destroy(&arena->lock);
    free(arena);
}

static void init_lock(daf_arena_t *arena) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes,
                              PTHREAD_MUTEX_ADAPTIVE_NP); /* held for well under a microsecond: spin first */
    pthread_mutex_init(&arena->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static uint64_t choose_span(const daf_arena_config_t *config, uint64_t unit_bytes) {
    uint64_t span = config->reserve_bytes;
    if (span == 0) span = dafi_min(MAX_SPAN_BYTES, 4 * dafi_max(dafi_machine_bytes(), config->budget_bytes));
    return dafi_round_up(span, dafi_max(unit_bytes, DAFI_SLAB_BYTES));
}

daf_status_t daf_arena_open(const daf_arena_config_t *config, daf_arena_t **out) {
    if (config->budget_bytes < DAF_MIN_BUDGET_BYTES) return DAF_INVALID;
    daf_arena_t *arena = calloc(1, sizeof *arena);
    if (!arena) return DAF_SYSTEM;
    init_lock(arena);
    arena->backend = config->backend ? *config->backend : *daf_backend_host();
    arena->budget_bytes = arena->initial_budget_bytes = config->budget_bytes;
    arena->growth_bytes = arena->backend.unit_bytes;
    dafi_decay_start(arena);
    arena->spill_file = -1;
    arena->slots = calloc(DAF_MAX_SLOTS, sizeof *arena->slots);
    uint32_t page_bytes = config->page_bytes ? config->page_bytes : DAF_DEFAULT_PAGE_BYTES;
    daf_status_t status = open_zones(arena, choose_span(config, arena->backend.unit_bytes), page_bytes);
    if (status == DAF_OK) status = dafi_spill_open(arena, config->spill_dir);
    if (status == DAF_OK && (!arena->slots || !dafi_table_open(&arena->stashes, sizeof(daf_stash_t), MAX_STASHES) ||
                             !dafi_table_open(&arena->index_nodes, sizeof(dafi_node_t), MAX_STASHES)))
        status = DAF_SYSTEM;
    if (status != DAF_OK) {
        destroy(arena);
        return status;
    }
    arena->index.nodes = (dafi_node_t *)arena->index_nodes.base;
    dafi_registry_add(arena);
    *out = arena;
    return DAF_OK;
}

void daf_arena_close(daf_arena_t *arena) {
    dafi_page_close(arena); /* joins the heartbeat, which takes the lock */
    dafi_lock(arena);
    dafi_pages_trim(arena, UINT64_MAX);
    dafi_tensors_trim(arena, UINT64_MAX, 0);
    arena->is_closed = true;
    dafi_leave(arena);
}

void daf_arena_unpublish(daf_arena_t *arena) {
    dafi_page_close(arena);
}

uint32_t daf_arena_page_bytes(const daf_arena_t *arena) {
    return arena->pages.page_bytes;
}

/* Nothing of a closed arena is left but the arena itself: whoever took the last piece away takes that too. */
void dafi_leave(daf_arena_t *arena) {
    bool is_last =
        arena->is_closed && arena->tensors.num_live == 0 && arena->num_stashes == 0 && arena->num_asking == 0;
    dafi_unlock(arena);
    if (is_last) destroy(arena);
}

typedef struct tensor_request {
    uint64_t num_bytes;
    void *block;          /* what it got */
    uint64_t block_bytes; /* of live memory that it took */
} tensor_request_t;

static void *find_block(daf_arena_t *arena, uint64_t num_bytes, daf_status_t *status) {
    dafi_tensors_t *zone = &arena->tensors;
    if (num_bytes <= DAFI_SMALL_MAX) return dafi_small_alloc(arena, num_bytes, status);
    uint32_t id = dafi_extent_alloc(arena, num_bytes, DAFI_LIVE, status);
    if (id == 0) return NULL;
    zone->live_bytes += dafi_extent(zone, id)->num_bytes;
    return zone->base + dafi_extent(zone, id)->offset;
}

static daf_status_t attempt_tensor(daf_arena_t *arena, void *context) {
    tensor_request_t *request = context;
    daf_status_t status;
    uint64_t before = arena->tensors.live_bytes;
    if (arena->is_closed) return DAF_CLOSED; /* by the callback */
    request->block = find_block(arena, request->num_bytes, &status);
    if (!request->block) return status;
    request->block_bytes = arena->tensors.live_bytes - before;
    arena->tensors.num_live++;
    arena->counts.allocs++;
    dafi_note(arena);
    if (request->num_bytes >= DAFI_LARGE_EVENT_BYTES)
        dafi_event(arena, DAFI_EVENT_ALLOC, 0, request->num_bytes, 0, NULL);
    return DAF_OK;
}

daf_status_t dafi_arena_take(daf_arena_t *arena, uint64_t num_bytes, void **block, uint64_t *block_bytes) {
    tensor_request_t request = {.num_bytes = dafi_max(num_bytes, 1)};
    dafi_lock(arena);
    daf_status_t status = dafi_request(arena, attempt_tensor, &request, dafi_taken_bytes(request.num_bytes));
    if (status == DAF_OUT_OF_MEMORY) {
        arena->counts.oom++;
        dafi_event(arena, DAFI_EVENT_OOM, 0, request.num_bytes, 0, "tensor");
    }
    if (dafi_is_half_live(arena)) dafi_tell_half(arena);
    dafi_leave(arena);
    *block = request.block;
    *block_bytes = request.block_bytes;
    return status;
}

daf_status_t daf_arena_alloc(daf_arena_t *arena, uint64_t num_bytes, void **block) {
    return dafi_arena_take(arena, num_bytes, block, &(uint64_t){0});
}

void daf_arena_range(const daf_arena_t *arena, uintptr_t *begin, uintptr_t *end) {
    *begin = (uintptr_t)arena->tensors.base;
    *end = *begin + arena->tensors.span_bytes;
}

int daf_arena_owns(const daf_arena_t *arena, const void *pointer) {
    const uint8_t *at = pointer, *base = arena->tensors.base;
    return at >= base && at < base + arena->tensors.span_bytes;
}

/* The live extent that `block` starts or, in a slab, lies in; NULL: not a block of ours. */
static dafi_extent_t *find_extent(daf_arena_t *arena, const void *block, uint32_t *id) {
    dafi_tensors_t *zone = &arena->tensors;
    if (!daf_arena_owns(arena, block)) return NULL;
    uint64_t offset = (uint64_t)((const uint8_t *)block - zone->base);
    *id = zone->owner[offset / DAFI_GRANULE];
    dafi_extent_t *extent = dafi_extent(zone, *id);
    if (extent->state == DAFI_LIVE && extent->offset == offset) return extent;
    bool is_inside = offset >= extent->offset && offset < extent->offset + extent->num_bytes;
    return extent->state == DAFI_SLAB && is_inside ? extent : NULL;
}

static daf_status_t free_locked(daf_arena_t *arena, void *block) {
    dafi_tensors_t *zone = &arena->tensors;
    uint32_t id;
    dafi_extent_t *extent = find_extent(arena, block, &id);
    if (!extent) return DAF_INVALID;
    if (extent->state == DAFI_SLAB) {
        daf_status_t status = dafi_small_free(arena, extent, (uint64_t)((uint8_t *)block - zone->base));
        if (status != DAF_OK) return status;
    } else {
        uint64_t num_bytes = extent->num_bytes;
        zone->live_bytes -= num_bytes;
        dafi_extent_free(arena, id);
        if (num_bytes >= DAFI_LARGE_EVENT_BYTES) dafi_event(arena, DAFI_EVENT_FREE, 0, num_bytes, 0, NULL);
    }
    zone->num_live--;
    arena->counts.frees++;
    dafi_after_free(arena);
    return DAF_OK;
}

daf_status_t dafi_arena_give(daf_arena_t *arena, void *block, uint64_t *block_bytes) {
    dafi_lock(arena);
    uint64_t before = arena->tensors.live_bytes;
    daf_status_t status = free_locked(arena, block);
    *block_bytes = before - arena->tensors.live_bytes;
    dafi_leave(arena);
    return status;
}

daf_status_t daf_arena_free(daf_arena_t *arena, void *block) {
    return dafi_arena_give(arena, block, &(uint64_t){0});
}

uint64_t daf_arena_block_bytes(daf_arena_t *arena, const void *block) {
    dafi_lock(arena);
    uint32_t id;
    const dafi_extent_t *extent = find_extent(arena, block, &id);
    uint64_t bytes = 0;
    if (extent && extent->state == DAFI_LIVE) bytes = extent->num_bytes;
    if (extent && extent->state == DAFI_SLAB)
        bytes =
            dafi_small_block_bytes(&arena->tensors, extent, (uint64_t)((const uint8_t *)block - arena->tensors.base));
    dafi_unlock(arena);
    return bytes;
}

void daf_arena_set_reclaim(daf_arena_t *arena, daf_reclaim_fn reclaim, void *context) {
    dafi_lock(arena);
    arena->reclaim = reclaim;
    arena->reclaim_context = context;
    dafi_unlock(arena);
}

uint64_t daf_arena_profiles_asked(const daf_arena_t *arena) {
    return atomic_load_explicit(&arena->num_profiles_asked, memory_order_relaxed);
}

int daf_arena_is_paused(const daf_arena_t *arena) {
    return atomic_load_explicit(&arena->is_paused, memory_order_relaxed);
}

void daf_arena_set_paused(daf_arena_t *arena, int is_paused) {
    dafi_lock(arena);
    atomic_store_explicit(&arena->is_paused, is_paused != 0, memory_order_relaxed);
    dafi_event(arena, is_paused ? DAFI_EVENT_PAUSE : DAFI_EVENT_RESUME, 0, 0, 0, NULL);
    dafi_unlock(arena);
}

void daf_arena_tell(daf_arena_t *arena, daf_told_t what, double value) {
    if ((unsigned)what < DAF_NUM_TOLD) atomic_store_explicit(&arena->told[what], value, memory_order_relaxed);
}

void daf_arena_count_saved(daf_arena_t *arena, int64_t raw_bytes, int64_t kept_bytes) {
    dafi_lock(arena);
    arena->other_raw_bytes += (uint64_t)raw_bytes;
    arena->kept_bytes += (uint64_t)kept_bytes;
    dafi_note(arena);
    dafi_unlock(arena);
}

void daf_arena_step(daf_arena_t *arena, double seconds) {
    dafi_trace(DAF_TRACE_STEP, NULL, 0, NULL);
    dafi_lock(arena);
    arena->counts.steps++;
    arena->counts.step_seconds = seconds;
    arena->counts.step_seconds_total += seconds;
    arena->last_step = arena->step;
    arena->step = dafi_now(arena);
    dafi_budget_end_grace(arena);
    dafi_commands_step(arena);
    if (arena->counts.steps - arena->decay.last_step >= DAFI_LOOK_STEPS) dafi_decay(arena);
    dafi_moves_renew(arena);
    dafi_assert_expensive(dafi_is_valid(arena, NULL, 0));
    dafi_event(arena, DAFI_EVENT_STEP, 0, arena->last_step.held, seconds, NULL);
    dafi_unlock(arena);
    dafi_publish(arena);
}

void daf_arena_reset_peaks(daf_arena_t *arena) {
    dafi_lock(arena);
    arena->peaks = (dafi_peaks_t){0};
    dafi_note(arena);
    dafi_unlock(arena);
}
