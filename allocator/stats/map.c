/* The map: what the zones' addresses hold, in at most 512 cells each.
 *
 * The zones are walked in slices, so that nobody waits for the lock longer than a slice takes. A zone that changes
 * between two slices may be shown as it never was; a walk whose next extent is gone is given up until the next beat.
 */
#include "stats/stats_page.h"

#include <string.h>

#define SLICE_EXTENTS 2048u
#define SLICE_WORDS 4096u

/* Add a stretch of addresses to the cells it covers. */
static void add_stretch(uint64_t sums[][2], uint64_t cell_bytes, uint64_t offset, uint64_t num_bytes, int kind) {
    while (num_bytes) {
        uint64_t cell = offset / cell_bytes, part = dafi_min(num_bytes, (cell + 1) * cell_bytes - offset);
        if (cell >= DAFI_MAP_CELLS) return;
        sums[cell][kind] += part;
        offset += part;
        num_bytes -= part;
    }
}

/* The extent that starts at `offset`, or NULL: since the last slice it was merged with the one before it. */
static const dafi_extent_t *extent_from(const dafi_tensors_t *zone, uint64_t offset) {
    uint32_t id = zone->owner[offset / DAFI_GRANULE];
    const dafi_extent_t *extent = dafi_extent(zone, id);
    return id && extent->state != DAFI_GONE && extent->offset == offset ? extent : NULL;
}

/* One slice from `*at` on; false: the walk cannot go on. */
static bool sum_extents(const dafi_tensors_t *zone, uint64_t cell_bytes, uint64_t top, uint64_t *at,
                        uint64_t sums[][2]) {
    for (uint32_t i = 0; i < SLICE_EXTENTS && *at < top; i++) {
        const dafi_extent_t *extent = extent_from(zone, *at);
        if (!extent) return false;
        if (extent->state != DAFI_CLEAN)
            add_stretch(sums, cell_bytes, *at, extent->num_bytes, extent->state == DAFI_DIRTY);
        *at += extent->num_bytes;
    }
    return true;
}

static bool sum_tensors(daf_arena_t *arena, uint64_t cell_bytes, uint64_t top, uint64_t sums[][2]) {
    bool is_whole = true;
    for (uint64_t at = 0; at < top && is_whole;) {
        dafi_lock(arena);
        is_whole = sum_extents(&arena->tensors, cell_bytes, top, &at, sums);
        dafi_unlock(arena);
    }
    return is_whole;
}

static void sum_words(const dafi_pages_t *zone, uint64_t cell_bytes, uint32_t begin, uint32_t end, uint64_t sums[][2]) {
    uint64_t word_bytes = UINT64_C(64) << zone->page_shift;
    for (uint32_t i = begin; i < end; i++) {
        const dafi_block_t *block = &zone->blocks[i / DAFI_BLOCK_WORDS];
        uint64_t used = block->used[i % DAFI_BLOCK_WORDS], committed = block->committed[i % DAFI_BLOCK_WORDS];
        uint64_t cell = i * word_bytes / cell_bytes;
        if (cell >= DAFI_MAP_CELLS) return;
        sums[cell][0] += (uint64_t)__builtin_popcountll(used) << zone->page_shift;
        sums[cell][1] += (uint64_t)__builtin_popcountll(committed & ~used) << zone->page_shift;
    }
}

static void sum_pages(daf_arena_t *arena, uint64_t cell_bytes, uint64_t top, uint64_t sums[][2]) {
    uint32_t num_words = (uint32_t)(top >> arena->pages.page_shift) / 64;
    for (uint32_t at = 0; at < num_words; at += SLICE_WORDS) {
        dafi_lock(arena);
        sum_words(&arena->pages, cell_bytes, at, (uint32_t)dafi_min(at + SLICE_WORDS, num_words), sums);
        dafi_unlock(arena);
    }
}

static void fill_cells(dafi_map_record_t *map, int zone, uint64_t cell_bytes, uint64_t top, uint64_t sums[][2]) {
    map->cell_bytes[zone] = cell_bytes;
    map->num_cells[zone] = (top + cell_bytes - 1) / cell_bytes;
    for (uint32_t i = 0; i < DAFI_MAP_CELLS; i++)
        for (int kind = 0; kind < 2; kind++)
            map->cells[zone][i][kind] = (uint8_t)((sums[i][kind] * 255 + cell_bytes / 2) / cell_bytes);
}

void dafi_zones_stage(daf_arena_t *arena) {
    dafi_page_header_t *page = arena->page->staged;
    dafi_map_record_t *map = dafi_section_at(page, &page->map, 0);
    uint64_t sums[2][DAFI_MAP_CELLS][2], cell_bytes[2];
    memset(sums, 0, sizeof sums);
    dafi_lock(arena);
    uint64_t tops[2] = {arena->tensors.top_bytes,
                        (uint64_t)arena->pages.top_block * DAFI_BLOCK_PAGES << arena->pages.page_shift};
    dafi_unlock(arena);
    uint64_t steps[2] = {DAFI_SLAB_BYTES, UINT64_C(64) << arena->pages.page_shift};
    for (int z = 0; z < 2; z++)
        cell_bytes[z] = dafi_max(steps[z], dafi_round_up(tops[z] / DAFI_MAP_CELLS + 1, steps[z]));
    if (!sum_tensors(arena, cell_bytes[0], tops[0], sums[0])) return;
    sum_pages(arena, cell_bytes[1], tops[1], sums[1]);
    for (int z = 0; z < 2; z++) fill_cells(map, z, cell_bytes[z], tops[z], sums[z]);
}
