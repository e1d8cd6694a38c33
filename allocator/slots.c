/* Slot rows: what the engine says of a slot, beside what the arena knows of its stashes. And the map of the zones. */
#include "page.h"

#include <stdio.h>
#include <string.h>

#define COLUMN(name_, type_, unit_, help_)                                                                             \
    {                                                                                                                  \
        .name = #name_, .unit = unit_, .help = help_, .kind = 1, .type = type_,                                        \
        .offset = offsetof(dafi_slot_record_t, name_), .num_bytes = sizeof(((dafi_slot_record_t *)0)->name_)           \
    }

static const daf_field_t columns[] = {
    COLUMN(name, 2, "", "Where in the model: module path and order"),
    COLUMN(op, 2, "", "The autograd node that asks for it"),
    COLUMN(codec, 2, "", "How it is coded"),
    COLUMN(bits, 1, "bits", "Planes written per element"),
    COLUMN(importance, 1, "", "Cost of losing a plane, per byte"),
    COLUMN(fidelity, 1, "ratio", "Cosine with the exact gradient; 0: not measured"),
    COLUMN(raw_bytes, 0, "bytes", "One tensor of the slot, uncompressed"),
    COLUMN(stored_bytes, 0, "bytes", "One tensor of the slot, as stored"),
    COLUMN(live_bytes, 0, "bytes", "Plane bytes of the slot's live stashes"),
    COLUMN(live_stashes, 0, "count", "Live stashes of the slot"),
    COLUMN(evictions, 0, "count", "Planes dropped from it so far"),
    COLUMN(evicted_bytes, 0, "bytes", "Bytes dropped from it so far"),
};

void dafi_columns_write(struct dafi_page *page) {
    page->header->columns.count = sizeof columns / sizeof *columns;
    memcpy(dafi_section_at(page, &page->header->columns, 0), columns, sizeof columns);
}

static void set_text(char *to, size_t to_bytes, const char *from) {
    if (!from) return;
    memset(to, 0, to_bytes);
    strncpy(to, from, to_bytes - 1);
}

static void set_arena_columns(dafi_slot_record_t *record, const dafi_slot_t *slot) {
    record->live_bytes = slot->live_bytes;
    record->live_stashes = slot->live_stashes;
    record->evictions = slot->evictions;
    record->evicted_bytes = slot->evicted_bytes;
}

static void write_row(daf_arena_t *arena, uint32_t slot_id, const daf_slot_row_t *row) {
    struct dafi_page *page = arena->page;
    dafi_slot_record_t *record = dafi_section_at(page, &page->header->slots, slot_id);
    dafi_sequence_begin(&record->sequence);
    set_text(record->name, sizeof record->name, row->name);
    set_text(record->op, sizeof record->op, row->op);
    set_text(record->codec, sizeof record->codec, row->codec);
    record->bits = row->bits;
    record->importance = row->importance;
    record->fidelity = row->fidelity;
    record->raw_bytes = row->raw_bytes;
    record->stored_bytes = row->stored_bytes;
    set_arena_columns(record, &arena->slots[slot_id]);
    dafi_sequence_end(&record->sequence);
    if (slot_id >= page->num_slots) page->num_slots = slot_id + 1;
}

void daf_arena_slot(daf_arena_t *arena, uint32_t slot_id, const daf_slot_row_t *row) {
    dafi_lock(arena);
    if (slot_id >= DAF_MAX_SLOTS)
        arena->counts.lost_slots++;
    else if (arena->page)
        write_row(arena, slot_id, row);
    dafi_unlock(arena);
}

void dafi_slots_write(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    for (uint32_t i = 0; i < page->num_slots; i++) {
        dafi_slot_record_t *record = dafi_section_at(page, &page->header->slots, i);
        const dafi_slot_t *slot = &arena->slots[i];
        bool is_same = record->live_bytes == slot->live_bytes && record->live_stashes == slot->live_stashes &&
                       record->evictions == slot->evictions;
        if (is_same || atomic_load_explicit(&record->sequence, memory_order_relaxed) == 0) continue;
        dafi_sequence_begin(&record->sequence);
        set_arena_columns(record, slot);
        dafi_sequence_end(&record->sequence);
    }
}

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

static void sum_tensors(const dafi_tensors_t *zone, uint64_t cell_bytes, uint64_t sums[][2]) {
    for (uint64_t at = 0; at < zone->top_bytes;) {
        const dafi_extent_t *extent = dafi_extent(zone, zone->owner[at / DAFI_GRANULE]);
        if (extent->state != DAFI_CLEAN)
            add_stretch(sums, cell_bytes, at, extent->num_bytes, extent->state == DAFI_DIRTY);
        at += extent->num_bytes;
    }
}

static void sum_pages(const dafi_pages_t *zone, uint64_t cell_bytes, uint64_t sums[][2]) {
    uint64_t word_bytes = UINT64_C(64) << zone->page_shift;
    for (uint32_t i = 0; i < zone->top_block * DAFI_BLOCK_WORDS; i++) {
        const dafi_block_t *block = &zone->blocks[i / DAFI_BLOCK_WORDS];
        uint64_t used = block->used[i % DAFI_BLOCK_WORDS], committed = block->committed[i % DAFI_BLOCK_WORDS];
        uint64_t cell = i * word_bytes / cell_bytes;
        if (cell >= DAFI_MAP_CELLS) return;
        sums[cell][0] += (uint64_t)__builtin_popcountll(used) << zone->page_shift;
        sums[cell][1] += (uint64_t)__builtin_popcountll(committed & ~used) << zone->page_shift;
    }
}

void dafi_map_write(daf_arena_t *arena) {
    dafi_map_record_t *map = dafi_section_at(arena->page, &arena->page->header->map, 0);
    uint64_t tops[2] = {arena->tensors.top_bytes,
                        (uint64_t)arena->pages.top_block * DAFI_BLOCK_PAGES << arena->pages.page_shift};
    uint64_t steps[2] = {DAFI_SLAB_BYTES, UINT64_C(64) << arena->pages.page_shift};
    static _Thread_local uint64_t sums[2][DAFI_MAP_CELLS][2];
    memset(sums, 0, sizeof sums);
    uint64_t cell_bytes[2];
    for (int z = 0; z < 2; z++)
        cell_bytes[z] = dafi_max(steps[z], dafi_round_up(tops[z] / DAFI_MAP_CELLS + 1, steps[z]));
    sum_tensors(&arena->tensors, cell_bytes[0], sums[0]);
    sum_pages(&arena->pages, cell_bytes[1], sums[1]);
    dafi_sequence_begin(&map->sequence);
    for (int z = 0; z < 2; z++) {
        map->cell_bytes[z] = cell_bytes[z];
        map->num_cells[z] = (tops[z] + cell_bytes[z] - 1) / cell_bytes[z];
        for (uint32_t i = 0; i < DAFI_MAP_CELLS; i++)
            for (int k = 0; k < 2; k++)
                map->cells[z][i][k] = (uint8_t)((sums[z][i][k] * 255 + cell_bytes[z] / 2) / cell_bytes[z]);
    }
    dafi_sequence_end(&map->sequence);
}
