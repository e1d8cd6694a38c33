/* The text of an out-of-memory error: what was asked, who holds what, which budget would have done.
 *
 * In a training the budget named is one for the step, not for the request: at least what no eviction could free at the
 * worst moment of this step and of the last whole one, and what whoever gives advice knows to be still to come. */
#include "stats/stats_page.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NUM_SLOTS_SHOWN 5

typedef struct text {
    char *at;
    uint64_t left_bytes;
} text_t;

__attribute__((format(printf, 2, 3))) static void say(text_t *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(text->at, text->left_bytes, format, arguments);
    va_end(arguments);
    uint64_t used = dafi_min(wrote > 0 ? (uint64_t)wrote : 0, text->left_bytes ? text->left_bytes - 1 : 0);
    text->at += used;
    text->left_bytes -= used;
}

static double mib(uint64_t num_bytes) {
    return (double)num_bytes / 1048576.0;
}

/* The slot that holds most, below `limit_bytes` or, at equal bytes, behind `after`; DAF_MAX_SLOTS: none. */
static uint32_t next_holder(const daf_arena_t *arena, uint64_t limit_bytes, uint32_t after) {
    uint32_t best = DAF_MAX_SLOTS;
    for (uint32_t i = 0; i < DAF_MAX_SLOTS; i++) {
        uint64_t bytes = arena->slots[i].live_bytes;
        bool is_next = bytes < limit_bytes || (bytes == limit_bytes && i > after);
        if (bytes && is_next && (best == DAF_MAX_SLOTS || bytes > arena->slots[best].live_bytes)) best = i;
    }
    return best;
}

static const char *slot_name(const daf_arena_t *arena, uint32_t slot_id) {
    if (!arena->page) return "";
    const dafi_page_header_t *page = arena->page->recent;
    return ((const dafi_slot_record_t *)dafi_section_at(page, &page->slots, slot_id))->name;
}

static void say_slots(text_t *text, const daf_arena_t *arena) {
    uint64_t limit = UINT64_MAX;
    uint32_t slot_id = 0;
    for (int i = 0; i < NUM_SLOTS_SHOWN; i++) {
        slot_id = next_holder(arena, limit, slot_id);
        if (slot_id == DAF_MAX_SLOTS) return;
        const dafi_slot_t *slot = &arena->slots[slot_id];
        limit = slot->live_bytes;
        say(text, "\n    slot %u %s: %.1f MiB in %llu stashes", slot_id, slot_name(arena, slot_id), mib(limit),
            (unsigned long long)slot->live_stashes);
    }
}

static uint64_t least_for_step(const daf_arena_t *arena, uint64_t num_bytes) {
    uint64_t least = dafi_least_budget(arena, dafi_taken_bytes(num_bytes));
    if (arena->counts.steps == 0) return least;
    return dafi_max(least, dafi_max(arena->step.held, arena->last_step.held));
}

static void say_holders(text_t *text, const daf_arena_t *arena) {
    uint32_t largest = dafi_tree_last(&arena->tensors.dirty);
    say(text, "\n  tensors: %.1f MiB in %llu blocks", mib(arena->tensors.live_bytes),
        (unsigned long long)arena->tensors.num_live);
    say(text, "\n  stashes: %.1f MiB in %llu (%.1f MiB uncompressed); %.1f MiB could still be dropped",
        mib(dafi_plane_bytes(arena)), (unsigned long long)arena->num_stashes, mib(arena->raw_bytes),
        mib(arena->droppable_bytes));
    say_slots(text, arena);
    say(text, "\n  cached: %.1f MiB; largest free piece %.1f MiB", mib(dafi_cached_bytes(arena)),
        largest ? mib(dafi_extent(&arena->tensors, largest)->num_bytes) : 0.0);
}

static void report(daf_arena_t *arena, uint64_t num_bytes, const daf_advice_t *advice, char *buffer,
                   uint64_t buffer_bytes) {
    text_t text = {buffer, buffer_bytes};
    dafi_lock(arena);
    uint64_t least = dafi_max(least_for_step(arena, num_bytes), advice->budget_bytes);
    say(&text,
        "DAF (%s): %.1f MiB asked for, and the budget of %.1f MiB does not hold it. A budget of %.1f MiB (%llu bytes) "
        "would have.",
        arena->backend.name, mib(num_bytes), mib(arena->budget_bytes), mib(least), (unsigned long long)least);
    if (advice->path[0]) say(&text, "\n  more in %s", advice->path);
    say_holders(&text, arena);
    dafi_unlock(arena);
}

void daf_arena_report(daf_arena_t *arena, uint64_t num_bytes, char *text, uint64_t text_bytes) {
    report(arena, num_bytes, &(daf_advice_t){0}, text, text_bytes);
}

static _Atomic(daf_advise_fn) advise;

void daf_set_advise(daf_advise_fn function) {
    atomic_store(&advise, function);
}

void daf_arena_explain(daf_arena_t *arena, uint64_t num_bytes, char *text, uint64_t text_bytes) {
    daf_advice_t advice = {0};
    daf_advise_fn function = atomic_load(&advise);
    dafi_lock(arena);
    advice.budget_bytes = least_for_step(arena, num_bytes);
    dafi_unlock(arena);
    if (function && dafi_call_begin()) {
        function(arena, num_bytes, &advice);
        dafi_call_end();
    }
    report(arena, num_bytes, &advice, text, text_bytes);
}
