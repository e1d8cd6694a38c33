/* The event ring: what happened, newest last. Written under the arena's lock, straight into the page. */
#include "page.h"

#include <stdio.h>
#include <string.h>

static const char *const kind_names[DAFI_NUM_EVENTS] = {
    "alloc", "free", "stash", "release", "evict", "spill",    "restore", "resize", "oom",
    "step",  "trim", "pause", "resume",  "plan",  "fidelity", "warning", "note",
};

uint32_t daf_event_num_kinds(void) {
    return DAFI_NUM_EVENTS;
}
const char *daf_event_kind(uint32_t kind) {
    return kind < DAFI_NUM_EVENTS ? kind_names[kind] : "";
}

void dafi_kinds_write(struct dafi_page *page) {
    for (uint32_t i = 0; i < DAFI_NUM_EVENTS; i++)
        snprintf(dafi_section_at(page, &page->header->kinds, i), 16, "%s", kind_names[i]);
}

void dafi_event(daf_arena_t *arena, dafi_event_t kind, uint32_t slot_id, uint64_t num_bytes, double value,
                const char *text) {
    struct dafi_page *page = arena->page;
    if (!page) return;
    uint64_t id = atomic_load_explicit(&page->header->num_events, memory_order_relaxed) + 1;
    dafi_event_record_t *event =
        dafi_section_at(page, &page->header->events, (uint32_t)((id - 1) % DAFI_NUM_EVENTS_KEPT));
    atomic_store_explicit(&event->id, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    event->wall_ns = dafi_wall_ns();
    event->kind = kind;
    event->slot_id = slot_id;
    event->num_bytes = num_bytes;
    event->value = value;
    memset(event->text, 0, sizeof event->text);
    if (text) strncpy(event->text, text, sizeof event->text - 1);
    atomic_store_explicit(&event->id, id, memory_order_release);
    atomic_store_explicit(&page->header->num_events, id, memory_order_release);
}

void daf_arena_event(daf_arena_t *arena, uint32_t kind, uint32_t slot_id, uint64_t num_bytes, double value,
                     const char *text) {
    dafi_lock(arena);
    dafi_event(arena, (dafi_event_t)(kind < DAFI_NUM_EVENTS ? kind : DAFI_EVENT_NOTE), slot_id, num_bytes, value, text);
    dafi_unlock(arena);
}
