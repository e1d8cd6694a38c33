/* The plane zone: pages of one size in one address range, kept as bits in blocks of 512.
 *
 *   block   used       1 1 1 0 0 1 0 0 ...     a stash's page
 *           committed  1 1 1 1 1 1 0 0 ...     used or dirty; a 0 is clean
 *
 * Any free page serves any stream, so there is no fragmentation to speak of: what is wasted is each stream's tail.
 * Pages come from the lowest block that has one, in order: a stream's pages mostly follow each other, and the top of
 * the zone empties first, from where trimming takes. Why bits and not a list: neighbours that are free together can be
 * given back in one call.
 */
#include "core/core.h"

#define ALL_ONES (~UINT64_C(0))

static uint8_t *address(const dafi_pages_t *zone, uint32_t block, uint32_t page) {
    return zone->base + (((uint64_t)block * DAFI_BLOCK_PAGES + page) << zone->page_shift);
}

/* Keep the summaries true after a change in `block`. */
static void update_summaries(dafi_pages_t *zone, uint32_t block) {
    const dafi_block_t *it = &zone->blocks[block];
    uint64_t dirty = 0, clean = 0;
    for (uint32_t i = 0; i < DAFI_BLOCK_WORDS; i++) {
        dirty |= it->committed[i] & ~it->used[i];
        clean |= ~it->committed[i];
    }
    dafi_bitmap_assign(&zone->dirty, block, dirty != 0);
    dafi_bitmap_assign(&zone->clean, block, clean != 0);
}

/* The lowest `count` set bits of `word`. */
static uint64_t lowest_bits(uint64_t word, uint64_t count) {
    if ((uint64_t)__builtin_popcountll(word) <= count) return word;
    uint64_t taken = 0;
    while (count--) {
        taken |= word & -word;
        word &= word - 1;
    }
    return taken;
}

/* Commit clean pages of one word of a block, whole units; returns how many. */
static uint64_t commit_word(daf_arena_t *arena, uint32_t block, uint32_t word, uint64_t wanted, dafi_hole_t *hole) {
    dafi_pages_t *zone = &arena->pages;
    uint64_t *committed = &zone->blocks[block].committed[word];
    uint64_t fresh = lowest_bits(~*committed, dafi_round_up(wanted, zone->unit_pages));
    if (fresh == 0) return 0;
    uint32_t first = (uint32_t)__builtin_ctzll(fresh), last = 63 - (uint32_t)__builtin_clzll(fresh);
    uint64_t bytes = (uint64_t)(last - first + 1) << zone->page_shift;
    /* On the host, where a unit is at most a page or a few, committing what is committed already does no harm. */
    if (arena->backend.commit(arena->backend.self, address(zone, block, word * 64 + first), bytes) != DAF_OK) return 0;
    *committed |= fresh;
    uint64_t num_fresh = (uint64_t)__builtin_popcountll(fresh);
    if (num_fresh == last - first + 1) dafi_hole_add(hole, address(zone, block, word * 64 + first), bytes);
    return num_fresh;
}

static uint64_t commit_block(daf_arena_t *arena, uint32_t block) {
    dafi_pages_t *zone = &arena->pages;
    uint64_t bytes = (uint64_t)DAFI_BLOCK_PAGES << zone->page_shift;
    if (arena->backend.commit(arena->backend.self, address(zone, block, 0), bytes) != DAF_OK) return 0;
    for (uint32_t i = 0; i < DAFI_BLOCK_WORDS; i++) zone->blocks[block].committed[i] = ALL_ONES;
    return DAFI_BLOCK_PAGES;
}

bool dafi_pages_commit(daf_arena_t *arena, uint64_t num_pages, dafi_hole_t *hole) {
    dafi_pages_t *zone = &arena->pages;
    while (num_pages) {
        uint32_t block = dafi_bitmap_first(&zone->clean);
        if (block == zone->num_blocks) return false;
        uint64_t added = 0;
        if (zone->unit_pages == DAFI_BLOCK_PAGES)
            added = commit_block(arena, block);
        else
            for (uint32_t i = 0; i < DAFI_BLOCK_WORDS && added < num_pages; i++)
                added += commit_word(arena, block, i, num_pages - added, hole);
        if (added == 0) return false;
        zone->num_dirty += added;
        zone->top_block = (uint32_t)dafi_max(zone->top_block, block + 1);
        arena->resident_bytes += added << zone->page_shift;
        arena->counts.grown_bytes += added << zone->page_shift;
        update_summaries(zone, block);
        num_pages -= dafi_min(added, num_pages);
    }
    return true;
}

void dafi_pages_take(daf_arena_t *arena, uint8_t **pages, uint32_t num_pages) {
    dafi_pages_t *zone = &arena->pages;
    dafi_assert(num_pages <= zone->num_dirty);
    zone->num_used += num_pages;
    zone->num_dirty -= num_pages;
    while (num_pages) {
        uint32_t block = dafi_bitmap_first(&zone->dirty);
        dafi_assert_internal(block < zone->num_blocks);
        dafi_block_t *it = &zone->blocks[block];
        for (uint32_t i = 0; i < DAFI_BLOCK_WORDS && num_pages; i++) {
            uint64_t dirty = it->committed[i] & ~it->used[i];
            for (; dirty && num_pages; dirty &= dirty - 1, num_pages--) {
                uint32_t bit = (uint32_t)__builtin_ctzll(dirty);
                it->used[i] |= UINT64_C(1) << bit;
                *pages++ = address(zone, block, i * 64 + bit);
            }
        }
        update_summaries(zone, block);
    }
}

void dafi_pages_give(daf_arena_t *arena, uint8_t *const *pages, uint32_t num_pages) {
    dafi_pages_t *zone = &arena->pages;
    for (uint32_t i = 0; i < num_pages; i++) {
        uint64_t page = (uint64_t)(pages[i] - zone->base) >> zone->page_shift;
        uint32_t block = (uint32_t)(page / DAFI_BLOCK_PAGES), bit = (uint32_t)(page % DAFI_BLOCK_PAGES);
        dafi_assert(block < zone->num_blocks);
        dafi_assert_internal(zone->blocks[block].used[bit / 64] >> bit % 64 & 1);
        zone->blocks[block].used[bit / 64] &= ~(UINT64_C(1) << bit % 64);
        dafi_bitmap_assign(&zone->dirty, block, true);
    }
    zone->num_used -= num_pages;
    zone->num_dirty += num_pages;
}

static bool is_dirty(const dafi_block_t *it, uint32_t page) {
    return (it->committed[page / 64] & ~it->used[page / 64]) >> page % 64 & 1;
}

/* The last run of dirty pages before `*end`, cut to whole units; returns its length and moves `*end` to its start. */
static uint32_t last_run(const dafi_pages_t *zone, const dafi_block_t *it, uint32_t *end) {
    uint32_t unit = zone->unit_pages, stop = *end;
    while (stop) {
        while (stop && !is_dirty(it, stop - 1)) stop--;
        uint32_t start = stop;
        while (start && is_dirty(it, start - 1)) start--;
        uint32_t first = (start + unit - 1) / unit * unit, last = stop / unit * unit;
        if (last > first) {
            *end = first;
            return last - first;
        }
        stop = start;
    }
    *end = 0;
    return 0;
}

static uint64_t trim_block(daf_arena_t *arena, uint32_t block, uint64_t max_pages, dafi_hole_t *hole) {
    dafi_pages_t *zone = &arena->pages;
    dafi_block_t *it = &zone->blocks[block];
    uint64_t given = 0;
    uint32_t at = DAFI_BLOCK_PAGES, run;
    while (given < max_pages && (run = last_run(zone, it, &at)) != 0) {
        uint32_t excess = run - (uint32_t)dafi_min(run, dafi_round_up(max_pages - given, zone->unit_pages));
        at += excess;
        run -= excess;
        uint64_t bytes = (uint64_t)run << zone->page_shift;
        if (dafi_give_back(arena, address(zone, block, at), bytes, hole) != DAF_OK) break;
        for (uint32_t i = at; i < at + run; i++) it->committed[i / 64] &= ~(UINT64_C(1) << i % 64);
        given += run;
    }
    update_summaries(zone, block);
    return given;
}

/* From the top of the zone. */
uint64_t dafi_pages_lend(daf_arena_t *arena, uint64_t max_bytes, dafi_hole_t *hole) {
    dafi_pages_t *zone = &arena->pages;
    uint64_t given = 0,
             wanted = dafi_round_up(dafi_min(max_bytes, zone->span_bytes), zone->page_bytes) >> zone->page_shift;
    uint32_t block = dafi_bitmap_last(&zone->dirty);
    while (given < wanted && block < zone->num_blocks) {
        given += trim_block(arena, block, wanted - given, hole);
        /* A block may keep dirty pages that are no whole unit: look below it next. */
        while (block > 0 && !dafi_bitmap_get(&zone->dirty, block - 1)) block--;
        if (block-- == 0) break;
    }
    zone->num_dirty -= given;
    arena->resident_bytes -= given << zone->page_shift;
    return given << zone->page_shift;
}

uint64_t dafi_pages_trim(daf_arena_t *arena, uint64_t max_bytes) {
    uint64_t given = dafi_pages_lend(arena, max_bytes, NULL);
    if (given) arena->counts.trims++;
    arena->counts.trimmed_bytes += given;
    return given;
}

daf_status_t dafi_pages_open(daf_arena_t *arena, uint64_t span_bytes, uint32_t page_bytes) {
    dafi_pages_t *zone = &arena->pages;
    uint64_t block_bytes = (uint64_t)DAFI_BLOCK_PAGES * page_bytes;
    if (page_bytes < DAF_MIN_PAGE_BYTES || (page_bytes & (page_bytes - 1)) || arena->backend.unit_bytes > block_bytes)
        return DAF_INVALID;
    zone->page_bytes = page_bytes;
    zone->page_shift = (uint32_t)__builtin_ctz(page_bytes);
    zone->unit_pages = (uint32_t)dafi_max(1, arena->backend.unit_bytes / page_bytes);
    if (zone->unit_pages > 64 && zone->unit_pages < DAFI_BLOCK_PAGES) zone->unit_pages = DAFI_BLOCK_PAGES;
    zone->num_blocks = (uint32_t)dafi_max(1, span_bytes / block_bytes);
    span_bytes = (uint64_t)zone->num_blocks * block_bytes;
    if (arena->backend.reserve(arena->backend.self, span_bytes, &zone->base) != DAF_OK) return DAF_SYSTEM;
    zone->span_bytes = span_bytes;
    zone->blocks_bytes = (uint64_t)zone->num_blocks * sizeof *zone->blocks;
    zone->blocks = dafi_map(zone->blocks_bytes);
    if (!zone->blocks || !dafi_bitmap_open(&zone->dirty, zone->num_blocks) ||
        !dafi_bitmap_open(&zone->clean, zone->num_blocks))
        return DAF_SYSTEM;
    for (uint32_t i = 0; i < zone->num_blocks; i++) dafi_bitmap_assign(&zone->clean, i, true);
    return DAF_OK;
}

void dafi_pages_close(daf_arena_t *arena) {
    dafi_pages_t *zone = &arena->pages;
    if (zone->base) arena->backend.unreserve(arena->backend.self, zone->base, zone->span_bytes);
    dafi_unmap(zone->blocks, zone->blocks_bytes);
    if (zone->dirty.num_bits) dafi_bitmap_close(&zone->dirty);
    if (zone->clean.num_bits) dafi_bitmap_close(&zone->clean);
}
