/* The event ring: what happened, newest last. Written under the arena's lock, into memory of our own. */
#include "stats/stats_page.h"

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

void dafi_kinds_write(dafi_page_header_t *page) {
    for (uint32_t i = 0; i < DAFI_NUM_EVENTS; i++)
        snprintf(dafi_section_at(page, &page->kinds, i), 16, "%s", kind_names[i]);
}

static dafi_event_record_t *event_at(const dafi_page_header_t *page, uint64_t id) {
    return dafi_section_at(page, &page->events, (uint32_t)((id - 1) % DAFI_NUM_EVENTS_KEPT));
}

void dafi_event(daf_arena_t *arena, dafi_event_t kind, uint32_t slot_id, uint64_t num_bytes, double value,
                const char *text) {
    if (!arena->page) return;
    dafi_page_header_t *page = arena->page->recent;
    dafi_event_record_t *event = event_at(page, ++page->num_events);
    *event = (dafi_event_record_t){.id = page->num_events,
                                   .wall_ns = dafi_wall_ns(),
                                   .kind = kind,
                                   .slot_id = slot_id,
                                   .num_bytes = num_bytes,
                                   .value = value};
    if (text) strncpy(event->text, text, sizeof event->text - 1);
}

void dafi_events_stage(daf_arena_t *arena, uint64_t *first_id) {
    struct dafi_page *page = arena->page;
    uint64_t last = page->recent->num_events, kept = dafi_min(last, DAFI_NUM_EVENTS_KEPT);
    *first_id = dafi_max(page->num_staged_events, last - kept) + 1;
    for (uint64_t id = *first_id; id <= last; id++) *event_at(page->staged, id) = *event_at(page->recent, id);
    page->num_staged_events = last;
}

/* Events `first` to `last` stand in one stretch of the ring, or in two where it starts anew. */
static void write_stretch(struct dafi_page *page, uint64_t first, uint64_t last) {
    const dafi_section_t *section = &page->staged->events;
    while (first <= last) {
        uint64_t at = (first - 1) % DAFI_NUM_EVENTS_KEPT;
        uint64_t count = dafi_min(last - first + 1, DAFI_NUM_EVENTS_KEPT - at);
        dafi_file_write(page->file, event_at(page->staged, first), count * section->stride,
                        section->offset + at * section->stride);
        first += count;
    }
}

/* Twice: with ids of 0 while the content changes, with their own when it has. */
void dafi_events_write(struct dafi_page *page, uint64_t first_id) {
    uint64_t last_id = page->num_staged_events;
    if (first_id > last_id) return;
    for (uint64_t id = first_id; id <= last_id; id++) event_at(page->staged, id)->id = 0;
    write_stretch(page, first_id, last_id);
    for (uint64_t id = first_id; id <= last_id; id++) event_at(page->staged, id)->id = id;
    write_stretch(page, first_id, last_id);
    page->staged->num_events = last_id;
}

void daf_arena_event(daf_arena_t *arena, uint32_t kind, uint32_t slot_id, uint64_t num_bytes, double value,
                     const char *text) {
    dafi_lock(arena);
    dafi_event(arena, (dafi_event_t)(kind < DAFI_NUM_EVENTS ? kind : DAFI_EVENT_NOTE), slot_id, num_bytes, value, text);
    dafi_unlock(arena);
    dafi_publish(arena);
}
