/* Eviction: drop the least important plane of all that may be dropped. */
#include "core/core.h"

bool dafi_evict_one(daf_arena_t *arena, dafi_reason_t reason) {
    uint32_t id = arena->index.first;
    daf_stash_t *stash = dafi_stash(arena, id);
    if (id == 0 || stash->view.num_streams <= stash->floor_streams)
        return false; /* only stashes at their floors are left */
    dafi_stash_unindex(arena, stash);
    uint32_t last = stash->view.num_streams - 1, num_pages = dafi_stash_num_pages(stash, last);
    uint64_t bytes = (uint64_t)num_pages << arena->pages.page_shift;
    dafi_pages_give(arena, stash->pages + stash->view.first_page[last], num_pages);
    stash->num_pages -= num_pages;
    stash->view.num_streams = last;
    dafi_stash_index(arena, stash);
    arena->stream_bytes[last] -= bytes;
    arena->waste_bytes -= stash->waste_bytes[last];
    arena->counts.evictions[reason]++;
    arena->counts.evicted_bytes += bytes;
    dafi_slot_t *slot = dafi_slot_change(arena, stash->slot_id);
    slot->live_bytes -= bytes;
    slot->evictions++;
    slot->evicted_bytes += bytes;
    return true;
}

uint32_t daf_arena_evict(daf_arena_t *arena, uint32_t max_count) {
    uint32_t count = 0;
    dafi_lock(arena);
    while (count < max_count && dafi_evict_one(arena, DAFI_BY_HAND)) count++;
    dafi_after_free(arena);
    dafi_unlock(arena);
    return count;
}
