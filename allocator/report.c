/* The text of an out-of-memory error: what was asked, who holds what, which budget would have done. */
#include "page.h"

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
    return ((const dafi_slot_record_t *)dafi_section_at(arena->page, &arena->page->header->slots, slot_id))->name;
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

void daf_arena_report(daf_arena_t *arena, uint64_t num_bytes, char *buffer, uint64_t buffer_bytes) {
    dafi_lock(arena);
    text_t text = {buffer, buffer_bytes};
    uint64_t plane = dafi_plane_bytes(arena), least = dafi_least_budget(arena, dafi_taken_bytes(num_bytes));
    uint32_t largest = dafi_tree_last(&arena->tensors.dirty);
    say(&text,
        "DAF (%s): %.1f MiB asked for, and the budget of %.1f MiB does not hold it. A budget of %.1f MiB (%llu bytes) "
        "would have.",
        arena->backend.name, mib(num_bytes), mib(arena->budget_bytes), mib(least), (unsigned long long)least);
    say(&text, "\n  tensors: %.1f MiB in %llu blocks", mib(arena->tensors.live_bytes),
        (unsigned long long)arena->tensors.num_live);
    say(&text, "\n  stashes: %.1f MiB in %llu (%.1f MiB uncompressed); %.1f MiB could still be dropped", mib(plane),
        (unsigned long long)arena->num_stashes, mib(arena->raw_bytes), mib(arena->droppable_bytes));
    say_slots(&text, arena);
    say(&text, "\n  cached: %.1f MiB; largest free piece %.1f MiB", mib(dafi_cached_bytes(arena)),
        largest ? mib(dafi_extent(&arena->tensors, largest)->num_bytes) : 0.0);
    dafi_unlock(arena);
}
