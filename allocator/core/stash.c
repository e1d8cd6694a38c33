/* Stashes: pages for every stream, pins, and their place in the eviction index while nobody uses them. */
#include "core/core.h"
#include "trace/trace_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t dafi_stash_num_pages(const daf_stash_t *stash, uint32_t stream) {
    uint32_t end = stream + 1 < stash->view.num_streams ? stash->view.first_page[stream + 1] : stash->num_pages;
    return end - stash->view.first_page[stream];
}

/* Doubles that are not negative order as their bits do. */
static uint64_t order_bits(double value) {
    uint64_t bits;
    if (!(value > 0)) value = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint64_t droppable_bytes(const daf_arena_t *arena, const daf_stash_t *stash) {
    if (stash->view.num_streams <= stash->floor_streams) return 0;
    uint32_t kept = stash->view.first_page[stash->floor_streams];
    return (uint64_t)(stash->num_pages - kept) << arena->pages.page_shift;
}

void dafi_stash_index(daf_arena_t *arena, daf_stash_t *stash) {
    dafi_assert(stash->num_pins == 0 && !stash->is_indexed && !stash->is_spilled);
    bool can_drop = stash->view.num_streams > stash->floor_streams;
    if (!can_drop && arena->spill_file < 0) return;
    dafi_node_t *node = dafi_table_at(&arena->index_nodes, stash->id);
    uint32_t last = stash->view.num_streams - 1;
    double bytes = (double)((uint64_t)dafi_stash_num_pages(stash, last) << arena->pages.page_shift);
    double cost = bytes > 0 ? stash->importance[last] / bytes : 0; /* an empty stream costs nothing to drop */
    node->key = can_drop ? order_bits(cost) : UINT64_MAX; /* at its floor it can only be spilled: after all others */
    node->tie = stash->age;
    dafi_tree_insert(&arena->index, stash->id);
    stash->is_indexed = 1;
    arena->droppable_bytes += droppable_bytes(arena, stash);
    arena->indexed_bytes += (uint64_t)stash->num_pages << arena->pages.page_shift;
}

void dafi_stash_unindex(daf_arena_t *arena, daf_stash_t *stash) {
    if (!stash->is_indexed) return;
    dafi_tree_erase(&arena->index, stash->id);
    stash->is_indexed = 0;
    dafi_assert_internal(arena->droppable_bytes >= droppable_bytes(arena, stash));
    arena->droppable_bytes -= droppable_bytes(arena, stash);
    arena->indexed_bytes -= (uint64_t)stash->num_pages << arena->pages.page_shift;
}

static bool is_sound(const daf_stash_spec_t *spec) {
    if (spec->num_streams == 0 || spec->num_streams > DAF_MAX_STREAMS || spec->floor_streams == 0) return false;
    uint64_t total = 0;
    for (uint32_t i = 0; i < spec->num_streams; i++) {
        if (spec->stream_bytes[i] > UINT64_C(1) << 44 || isnan(spec->importance[i])) return false;
        total += spec->stream_bytes[i];
    }
    return total > 0;
}

/* Lay the streams out on page numbers; returns how many pages. */
static uint64_t lay_out(const daf_stash_spec_t *spec, const dafi_pages_t *zone, uint32_t *first_page) {
    uint64_t num_pages = 0;
    for (uint32_t i = 0; i < spec->num_streams; i++) {
        first_page[i] = (uint32_t)num_pages;
        num_pages += (spec->stream_bytes[i] + zone->page_bytes - 1) >> zone->page_shift;
    }
    return num_pages;
}

/* Add a stash's pages to the sums of planes in memory (`sign` 1), or take them off (-1). */
void dafi_stash_count_planes(daf_arena_t *arena, const daf_stash_t *stash, int sign) {
    uint64_t times = (uint64_t)(int64_t)sign; /* unsigned arithmetic wraps, so times -1 subtracts */
    uint32_t shift = arena->pages.page_shift;
    dafi_slot_change(arena, stash->slot_id)->live_bytes += times * ((uint64_t)stash->num_pages << shift);
    for (uint32_t i = 0; i < stash->view.num_streams; i++) {
        arena->stream_bytes[i] += times * ((uint64_t)dafi_stash_num_pages(stash, i) << shift);
        arena->waste_bytes += times * stash->waste_bytes[i];
    }
}

static void count_stash(daf_arena_t *arena, const daf_stash_t *stash, int sign) {
    uint64_t times = (uint64_t)(int64_t)sign;
    arena->num_stashes += times;
    arena->raw_bytes += times * stash->raw_bytes;
    dafi_slot_change(arena, stash->slot_id)->live_stashes += times;
    if (!stash->is_spilled) dafi_stash_count_planes(arena, stash, sign);
}

static daf_stash_t *make_stash(daf_arena_t *arena, const daf_stash_spec_t *spec, uint64_t num_pages,
                               const uint32_t *first_page) {
    uint8_t **array = NULL;
    if (num_pages > DAFI_INLINE_PAGES && !(array = malloc(num_pages * sizeof *array))) return NULL;
    uint32_t id = dafi_table_take(&arena->stashes);
    if (id == 0) {
        free(array);
        return NULL;
    }
    daf_stash_t *stash = dafi_stash(arena, id);
    *stash = (daf_stash_t){.id = id, .age = ++arena->next_age, .num_pins = 1, .num_pages = (uint32_t)num_pages};
    stash->pages = array ? array : stash->inline_pages;
    stash->view.pages = stash->pages;
    stash->view.page_bytes = arena->pages.page_bytes;
    stash->view.num_streams = spec->num_streams;
    stash->floor_streams = (uint8_t)dafi_min(spec->floor_streams, spec->num_streams);
    memcpy(stash->view.first_page, first_page, sizeof stash->view.first_page);
    for (uint32_t i = 0; i < spec->num_streams; i++) {
        stash->importance[i] = (float)spec->importance[i];
        stash->waste_bytes[i] = (uint32_t)(-spec->stream_bytes[i] & (arena->pages.page_bytes - 1));
    }
    return stash;
}

typedef struct stash_request {
    const daf_stash_spec_t *spec;
    uint32_t slot_id;
    uint64_t raw_bytes;
    daf_stash_t *stash; /* what it got */
} stash_request_t;

static daf_status_t attempt_stash(daf_arena_t *arena, void *context) {
    stash_request_t *request = context;
    uint32_t first_page[DAF_MAX_STREAMS] = {0};
    uint64_t num_pages = lay_out(request->spec, &arena->pages, first_page);
    if (arena->is_closed) return DAF_CLOSED;
    if (num_pages > UINT32_MAX) return DAF_OUT_OF_MEMORY;
    if (!dafi_admit_pages(arena, num_pages)) return DAF_OUT_OF_MEMORY;
    daf_stash_t *stash = make_stash(arena, request->spec, num_pages, first_page);
    if (!stash) return DAF_SYSTEM;
    dafi_pages_take(arena, stash->pages, (uint32_t)num_pages);
    stash->slot_id = request->slot_id;
    stash->raw_bytes = request->raw_bytes;
    count_stash(arena, stash, 1);
    arena->counts.reserves++;
    dafi_note(arena);
    uint64_t bytes = num_pages << arena->pages.page_shift;
    if (bytes >= DAFI_LARGE_EVENT_BYTES)
        dafi_event(arena, DAFI_EVENT_STASH, stash->slot_id, bytes, (double)stash->raw_bytes, NULL);
    request->stash = stash;
    return DAF_OK;
}

static uint64_t spec_bytes(const daf_stash_spec_t *spec, uint32_t page_bytes) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < spec->num_streams; i++) bytes += dafi_round_up(spec->stream_bytes[i], page_bytes);
    return bytes;
}

static uint64_t stored_bytes(const daf_stash_spec_t *spec) {
    uint64_t num_bytes = 0;
    for (uint32_t i = 0; i < spec->num_streams; i++) num_bytes += spec->stream_bytes[i];
    return num_bytes;
}

daf_status_t daf_stash_reserve(daf_arena_t *arena, const daf_stash_spec_t *spec, uint32_t slot_id, uint64_t raw_bytes,
                               daf_stash_t **stash) {
    if (!is_sound(spec)) return DAF_INVALID;
    stash_request_t request = {
        .spec = spec, .slot_id = (uint32_t)dafi_min(slot_id, DAF_MAX_SLOTS - 1), .raw_bytes = raw_bytes};
    uint64_t bytes = spec_bytes(spec, arena->pages.page_bytes);
    dafi_lock(arena);
    daf_status_t status = dafi_request(arena, attempt_stash, &request, bytes);
    if (status == DAF_OUT_OF_MEMORY) {
        arena->counts.oom++;
        dafi_event(arena, DAFI_EVENT_OOM, request.slot_id, bytes, 0, "stash");
    }
    dafi_leave(arena);
    *stash = request.stash;
    if (status == DAF_OK) dafi_trace(DAF_TRACE_STASH, *stash, stored_bytes(spec), (void *)(uintptr_t)spec->num_streams);
    return status;
}

static daf_status_t attempt_restore(daf_arena_t *arena, void *stash) {
    bool is_here = !((daf_stash_t *)stash)->is_spilled; /* another thread's pin may have done it meanwhile */
    return is_here || dafi_spill_restore(arena, stash) ? DAF_OK : DAF_OUT_OF_MEMORY;
}

daf_status_t daf_stash_pin(daf_arena_t *arena, daf_stash_t *stash) {
    dafi_lock(arena);
    daf_status_t status = stash->age == 0 ? DAF_INVALID : DAF_OK;
    uint64_t bytes = (uint64_t)stash->num_pages << arena->pages.page_shift;
    if (status == DAF_OK) {
        stash->num_pins++;
        dafi_stash_unindex(arena, stash);
        if (stash->is_spilled) status = dafi_request(arena, attempt_restore, stash, bytes);
        if (status != DAF_OK) {
            stash->num_pins--;
            arena->counts.oom++;
            dafi_event(arena, DAFI_EVENT_OOM, stash->slot_id, bytes, 0, "spilled");
        }
        dafi_note(arena);
    }
    dafi_unlock(arena);
    return status;
}

daf_status_t daf_stash_unpin(daf_arena_t *arena, daf_stash_t *stash) {
    dafi_lock(arena);
    daf_status_t status = stash->age == 0 || stash->num_pins == 0 ? DAF_INVALID : DAF_OK;
    if (status == DAF_OK && --stash->num_pins == 0) {
        dafi_stash_index(arena, stash);
        dafi_after_free(arena);
    }
    dafi_unlock(arena);
    return status;
}

static void release_locked(daf_arena_t *arena, daf_stash_t *stash) {
    uint64_t bytes = (uint64_t)stash->num_pages << arena->pages.page_shift;
    dafi_stash_unindex(arena, stash);
    count_stash(arena, stash, -1);
    if (stash->is_spilled)
        dafi_spill_forget(arena, stash);
    else
        dafi_pages_give(arena, stash->pages, stash->num_pages);
    arena->counts.releases++;
    if (bytes >= DAFI_LARGE_EVENT_BYTES) dafi_event(arena, DAFI_EVENT_RELEASE, stash->slot_id, bytes, 0, NULL);
    if (stash->pages != stash->inline_pages) free(stash->pages);
    stash->age = 0;
    dafi_table_give(&arena->stashes, stash->id);
    dafi_after_free(arena);
}

daf_status_t daf_stash_release(daf_arena_t *arena, daf_stash_t *stash) {
    dafi_trace(DAF_TRACE_RELEASE, stash, 0, NULL);
    dafi_lock(arena);
    daf_status_t status = stash->age == 0 ? DAF_INVALID : DAF_OK;
    if (status == DAF_OK) release_locked(arena, stash);
    dafi_leave(arena);
    return status;
}

daf_status_t daf_stash_set_importance(daf_arena_t *arena, daf_stash_t *stash, const double *importance) {
    dafi_lock(arena);
    daf_status_t status = stash->age == 0 ? DAF_INVALID : DAF_OK;
    if (status == DAF_OK) {
        bool was_indexed = stash->is_indexed;
        dafi_stash_unindex(arena, stash);
        for (uint32_t i = 0; i < stash->view.num_streams; i++) stash->importance[i] = (float)importance[i];
        if (was_indexed) dafi_stash_index(arena, stash);
    }
    dafi_unlock(arena);
    return status;
}

const daf_stash_view_t *daf_stash_view(const daf_stash_t *stash) {
    return &stash->view;
}

uint64_t daf_stash_bytes(daf_arena_t *arena, const daf_stash_t *stash) {
    dafi_lock(arena);
    uint64_t bytes = (uint64_t)stash->num_pages << arena->pages.page_shift;
    dafi_unlock(arena);
    return bytes;
}

void daf_arena_clear(daf_arena_t *arena) {
    dafi_lock(arena);
    for (uint32_t id = 1; id < arena->stashes.num_used; id++)
        if (dafi_stash(arena, id)->age) release_locked(arena, dafi_stash(arena, id));
    dafi_leave(arena);
}
