/* Slot rows: what the engine says of a slot, beside what the arena knows of its stashes. */
#include "stats/stats_page.h"

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

void dafi_columns_write(dafi_page_header_t *page) {
    page->columns.count = sizeof columns / sizeof *columns;
    memcpy(dafi_section_at(page, &page->columns, 0), columns, sizeof columns);
}

static dafi_slot_record_t *row_at(const dafi_page_header_t *page, uint32_t slot_id) {
    return dafi_section_at(page, &page->slots, slot_id);
}

static void set_text(char *to, size_t to_bytes, const char *from) {
    if (!from) return;
    memset(to, 0, to_bytes);
    strncpy(to, from, to_bytes - 1);
}

static void write_row(daf_arena_t *arena, uint32_t slot_id, const daf_slot_row_t *row) {
    dafi_slot_record_t *record = row_at(arena->page->recent, slot_id);
    record->sequence = 1; /* it has been written */
    set_text(record->name, sizeof record->name, row->name);
    set_text(record->op, sizeof record->op, row->op);
    set_text(record->codec, sizeof record->codec, row->codec);
    record->bits = row->bits;
    record->importance = row->importance;
    record->fidelity = row->fidelity;
    record->raw_bytes = row->raw_bytes;
    record->stored_bytes = row->stored_bytes;
    dafi_slot_change(arena, slot_id);
}

void daf_arena_slot(daf_arena_t *arena, uint32_t slot_id, const daf_slot_row_t *row) {
    dafi_lock(arena);
    if (slot_id >= DAF_MAX_SLOTS)
        arena->counts.lost_slots++;
    else if (arena->page)
        write_row(arena, slot_id, row);
    dafi_unlock(arena);
}

static void stage_row(const daf_arena_t *arena, uint32_t slot_id) {
    struct dafi_page *page = arena->page;
    const dafi_slot_record_t *recent = row_at(page->recent, slot_id);
    const dafi_slot_t *slot = &arena->slots[slot_id];
    if (recent->sequence == 0) return; /* the engine has not said yet what it is */
    dafi_slot_record_t *staged = row_at(page->staged, slot_id);
    uint64_t sequence = staged->sequence;
    *staged = *recent;
    staged->sequence = sequence;
    staged->live_bytes = slot->live_bytes;
    staged->live_stashes = slot->live_stashes;
    staged->evictions = slot->evictions;
    staged->evicted_bytes = slot->evicted_bytes;
    page->staged_rows[slot_id / 64] |= UINT64_C(1) << slot_id % 64;
}

void dafi_rows_stage(daf_arena_t *arena) {
    for (uint32_t word = 0; word < DAF_MAX_SLOTS / 64; word++) {
        for (uint64_t bits = arena->changed_slots[word]; bits; bits &= bits - 1)
            stage_row(arena, word * 64 + (uint32_t)__builtin_ctzll(bits));
        arena->changed_slots[word] = 0;
    }
}

/* Count the sequences of rows `bits` of a word up, and write all rows from the first to the last of them. */
static void write_run(struct dafi_page *page, uint32_t word, uint64_t bits) {
    uint32_t first = (uint32_t)__builtin_ctzll(bits), last = 63 - (uint32_t)__builtin_clzll(bits);
    const dafi_section_t *section = &page->staged->slots;
    for (uint64_t left = bits; left; left &= left - 1)
        row_at(page->staged, word * 64 + (uint32_t)__builtin_ctzll(left))->sequence++;
    uint32_t row = word * 64 + first;
    dafi_file_write(page->file, row_at(page->staged, row), (uint64_t)(last - first + 1) * section->stride,
                    section->offset + (uint64_t)row * section->stride);
}

/* Twice: with odd sequences while the content changes, with even ones when it has. */
void dafi_rows_write(struct dafi_page *page) {
    for (uint32_t word = 0; word < DAF_MAX_SLOTS / 64; word++) {
        uint64_t bits = page->staged_rows[word];
        page->staged_rows[word] = 0;
        for (int i = 0; bits && i < 2; i++) write_run(page, word, bits);
    }
}
