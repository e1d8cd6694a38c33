/* The dearest of our checks: walk every structure and compare it with every counter. Tests and the sanitizer runs call
 * it; dafi_assert_expensive does, where checks are on. */
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct verdict {
    char *why;
    uint64_t why_bytes;
    bool is_valid;
} verdict_t;

static void expect(verdict_t *verdict, bool condition, const char *what) {
    if (condition || !verdict->is_valid) return;
    verdict->is_valid = false;
    if (verdict->why) snprintf(verdict->why, verdict->why_bytes, "%s", what);
}

typedef struct extent_sums {
    uint64_t idle, live, dirty, clean, slab, num_dirty, num_clean, small_live, num_live;
} extent_sums_t;

static void walk_slab(const dafi_tensors_t *zone, const dafi_extent_t *extent, extent_sums_t *sums,
                      verdict_t *verdict) {
    const dafi_slab_t *slab = dafi_table_at(&zone->slabs, extent->slab);
    uint32_t num_free = 0;
    for (uint32_t i = 0; i < sizeof slab->free_bits / 8; i++)
        num_free += (uint32_t)__builtin_popcountll(slab->free_bits[i]);
    expect(verdict, num_free == slab->num_free, "a slab's count of free blocks is wrong");
    if (num_free == slab->num_blocks) sums->idle += DAFI_SLAB_BYTES;
    expect(verdict, dafi_extent(zone, slab->extent) == extent, "a slab does not know its extent");
    uint64_t offset = extent->offset, end = offset + DAFI_SLAB_BYTES;
    for (uint32_t bytes; offset < end; offset += bytes ? bytes : 64) {
        bytes = dafi_small_block_bytes(zone, extent, offset);
        sums->small_live += bytes;
        sums->num_live += bytes != 0;
    }
}

static void walk_extents(const dafi_tensors_t *zone, extent_sums_t *sums, verdict_t *verdict) {
    uint32_t previous_state = DAFI_GONE;
    uint64_t at = 0;
    while (at < zone->span_bytes && verdict->is_valid) {
        uint32_t id = zone->owner[at / DAFI_GRANULE];
        const dafi_extent_t *extent = dafi_extent(zone, id);
        expect(verdict, id && extent->offset == at && extent->num_bytes > 0,
               "an extent is not where its owner map says");
        if (!verdict->is_valid) return;
        expect(verdict, zone->owner[(at + extent->num_bytes) / DAFI_GRANULE - 1] == id,
               "an extent's end is not marked");
        bool is_free = extent->state == DAFI_DIRTY || extent->state == DAFI_CLEAN;
        expect(verdict, !is_free || extent->state != previous_state, "two free neighbours are not merged");
        sums->live += extent->state == DAFI_LIVE ? extent->num_bytes : 0;
        sums->dirty += extent->state == DAFI_DIRTY ? extent->num_bytes : 0;
        sums->clean += extent->state == DAFI_CLEAN ? extent->num_bytes : 0;
        sums->slab += extent->state == DAFI_SLAB ? extent->num_bytes : 0;
        sums->num_live += extent->state == DAFI_LIVE;
        sums->num_dirty += extent->state == DAFI_DIRTY;
        sums->num_clean += extent->state == DAFI_CLEAN;
        if (extent->state == DAFI_SLAB) walk_slab(zone, extent, sums, verdict);
        previous_state = extent->state;
        at += extent->num_bytes;
    }
}

static void check_tensors(const dafi_tensors_t *zone, verdict_t *verdict) {
    extent_sums_t sums = {0};
    walk_extents(zone, &sums, verdict);
    expect(verdict, dafi_tree_is_valid(&zone->dirty) && dafi_tree_is_valid(&zone->clean),
           "a tree of extents is out of order");
    expect(verdict, sums.num_dirty == zone->dirty.num_nodes && sums.num_clean == zone->clean.num_nodes,
           "a free extent is not in its tree");
    expect(verdict, sums.dirty == zone->dirty_bytes, "dirty bytes are wrong");
    expect(verdict, sums.live + sums.small_live == zone->live_bytes, "live tensor bytes are wrong");
    expect(verdict, sums.slab - sums.small_live == zone->slack_bytes, "slack bytes are wrong");
    expect(verdict, sums.idle == zone->idle_bytes, "idle bytes are wrong");
    expect(verdict, sums.num_live == zone->num_live, "the count of live blocks is wrong");
}

static void check_blocks(const dafi_pages_t *zone, verdict_t *verdict) {
    uint64_t num_used = 0, num_dirty = 0;
    for (uint32_t b = 0; b < zone->top_block; b++) {
        const dafi_block_t *block = &zone->blocks[b];
        uint64_t any_dirty = 0;
        for (uint32_t i = 0; i < DAFI_BLOCK_WORDS; i++) {
            expect(verdict, (block->used[i] & ~block->committed[i]) == 0, "a used page is not committed");
            num_used += (uint64_t)__builtin_popcountll(block->used[i]);
            num_dirty += (uint64_t)__builtin_popcountll(block->committed[i] & ~block->used[i]);
            any_dirty |= block->committed[i] & ~block->used[i];
        }
        expect(verdict, dafi_bitmap_get(&zone->dirty, b) == (any_dirty != 0), "a block's summary is wrong");
    }
    expect(verdict, num_used == zone->num_used && num_dirty == zone->num_dirty, "page counts are wrong");
}

typedef struct stash_sums {
    uint64_t count, pages, droppable, indexed_bytes, raw, waste, streams[DAF_MAX_STREAMS];
    uint64_t num_indexed;
} stash_sums_t;

/* Every page of a stash must be in use, and by no other: `seen` has a bit a page. */
static void walk_pages(const dafi_pages_t *zone, const daf_stash_t *stash, uint64_t *seen, verdict_t *verdict) {
    for (uint32_t i = 0; i < stash->num_pages; i++) {
        uint64_t page = (uint64_t)(stash->pages[i] - zone->base) >> zone->page_shift;
        const dafi_block_t *block = &zone->blocks[page / DAFI_BLOCK_PAGES];
        uint64_t mask = UINT64_C(1) << page % 64;
        expect(verdict, block->used[page % DAFI_BLOCK_PAGES / 64] & mask, "a stash holds a free page");
        expect(verdict, !(seen[page / 64] & mask), "two stashes hold one page");
        seen[page / 64] |= mask;
    }
}

static void walk_stash(const daf_arena_t *arena, const daf_stash_t *stash, stash_sums_t *sums, verdict_t *verdict) {
    uint32_t shift = arena->pages.page_shift;
    uint32_t live = stash->view.num_streams;
    bool can_drop = live > stash->floor_streams;
    expect(verdict, live >= stash->floor_streams && stash->floor_streams >= 1, "a stash is below its floor");
    expect(verdict, !stash->is_indexed || stash->num_pins == 0, "a pinned stash is in the index");
    expect(verdict, stash->is_indexed || stash->num_pins || !can_drop || stash->is_spilled,
           "an evictable stash is not in the index");
    sums->count++;
    sums->raw += stash->raw_bytes;
    for (uint32_t i = 0; i < live && !stash->is_spilled; i++) {
        sums->waste += stash->waste_bytes[i];
        sums->streams[i] += (uint64_t)dafi_stash_num_pages(stash, i) << shift;
    }
    if (!stash->is_spilled) sums->pages += stash->num_pages;
    if (!stash->is_indexed) return;
    sums->num_indexed++;
    sums->indexed_bytes += (uint64_t)stash->num_pages << shift;
    if (can_drop)
        sums->droppable += (uint64_t)(stash->num_pages - stash->view.first_page[stash->floor_streams]) << shift;
}

static void check_stashes(const daf_arena_t *arena, verdict_t *verdict) {
    stash_sums_t sums = {0};
    uint64_t seen_bytes = (uint64_t)(arena->pages.top_block + 1) * DAFI_BLOCK_PAGES / 8;
    uint64_t *seen = calloc(1, seen_bytes);
    for (uint32_t id = 1; seen && id < arena->stashes.num_used; id++) {
        const daf_stash_t *stash = dafi_stash(arena, id);
        if (stash->age == 0) continue;
        walk_stash(arena, stash, &sums, verdict);
        if (!stash->is_spilled) walk_pages(&arena->pages, stash, seen, verdict);
    }
    free(seen);
    expect(verdict, dafi_tree_is_valid(&arena->index), "the eviction index is out of order");
    expect(verdict, sums.num_indexed == arena->index.num_nodes, "the eviction index has lost a stash");
    expect(verdict, sums.count == arena->num_stashes && sums.raw == arena->raw_bytes, "stash counts are wrong");
    expect(verdict, sums.pages == arena->pages.num_used, "a used page belongs to no stash");
    expect(verdict, sums.droppable == arena->droppable_bytes, "droppable bytes are wrong");
    expect(verdict, sums.indexed_bytes == arena->indexed_bytes, "indexed bytes are wrong");
    expect(verdict, sums.waste == arena->waste_bytes, "waste bytes are wrong");
    expect(verdict, memcmp(sums.streams, arena->stream_bytes, sizeof sums.streams) == 0, "bytes by stream are wrong");
}

static void check_sums(const daf_arena_t *arena, verdict_t *verdict) {
    const dafi_tensors_t *tensors = &arena->tensors;
    uint64_t pages = (arena->pages.num_used + arena->pages.num_dirty) << arena->pages.page_shift;
    uint64_t sum = tensors->live_bytes + tensors->slack_bytes + tensors->dirty_bytes + pages;
    expect(verdict, sum == arena->resident_bytes, "resident is not tensors + planes + cached");
    bool is_over = arena->resident_bytes > arena->budget_bytes;
    expect(verdict, !is_over || arena->pending_bytes || arena->grace_bytes,
           "resident is over the budget, and no smaller budget is pending");
}

bool dafi_is_valid(const daf_arena_t *arena, char *why, uint64_t why_bytes) {
    verdict_t verdict = {.why = why, .why_bytes = why_bytes, .is_valid = true};
    check_tensors(&arena->tensors, &verdict);
    check_blocks(&arena->pages, &verdict);
    check_stashes(arena, &verdict);
    check_sums(arena, &verdict);
    return verdict.is_valid;
}

int daf_arena_is_valid(daf_arena_t *arena, char *why, uint64_t why_bytes) {
    dafi_lock(arena);
    bool is_valid = dafi_is_valid(arena, why, why_bytes);
    dafi_unlock(arena);
    return is_valid;
}
