/* Spill: when every floor is reached, whole stashes go to a file, the oldest first (backward wants them last), and come
 * back when pinned. The file has no name, so nothing is left behind when the process ends, however it ends.
 *
 * The file is cut into cells of one page. While a stash is spilled, its page pointers hold cell numbers instead of
 * addresses. Reading and writing happen under the arena's lock: spilling is for runs that would end otherwise, not for
 * speed. */
#include "core/core.h"

#include <stdlib.h>

static bool move_page(daf_arena_t *arena, uint8_t *page, uint32_t cell, bool is_write) {
    uint64_t offset = (uint64_t)cell << arena->pages.page_shift, num_bytes = arena->pages.page_bytes;
    void *self = arena->backend.self;
    uint8_t *buffer = arena->backend.copy_out ? arena->spill_buffer : page;
    if (is_write && arena->backend.copy_out && arena->backend.copy_out(self, buffer, page, num_bytes) != DAF_OK)
        return false;
    bool is_moved = is_write ? dafi_file_write(arena->spill_file, buffer, num_bytes, offset)
                             : dafi_file_read(arena->spill_file, buffer, num_bytes, offset);
    if (!is_moved) return false;
    if (!is_write && arena->backend.copy_in) return arena->backend.copy_in(self, page, buffer, num_bytes) == DAF_OK;
    return true;
}

static uint32_t take_cell(daf_arena_t *arena) {
    if (arena->num_free_cells) return arena->free_cells[--arena->num_free_cells];
    return arena->num_spill_cells++;
}

static void give_cell(daf_arena_t *arena, uint32_t cell) {
    arena->free_cells[arena->num_free_cells++] = cell;
}

/* Room to note every cell as free, should it come to that. */
static bool grow_free_cells(daf_arena_t *arena, uint32_t num_pages) {
    uint64_t wanted = (uint64_t)arena->num_spill_cells + num_pages;
    if (wanted > UINT32_MAX) return false;
    if (wanted <= arena->free_cells_capacity) return true;
    uint32_t *larger = realloc(arena->free_cells, 2 * wanted * sizeof *larger);
    if (!larger) return false;
    arena->free_cells = larger;
    arena->free_cells_capacity = 2 * wanted;
    return true;
}

static bool write_pages(daf_arena_t *arena, const daf_stash_t *stash, uint32_t *cells) {
    for (uint32_t i = 0; i < stash->num_pages; i++) {
        cells[i] = take_cell(arena);
        if (move_page(arena, stash->pages[i], cells[i], true)) continue;
        for (uint32_t j = 0; j <= i; j++) give_cell(arena, cells[j]);
        return false;
    }
    return true;
}

bool dafi_spill_one(daf_arena_t *arena) {
    uint32_t id = arena->index.first;
    if (arena->spill_file < 0 || id == 0) return false;
    daf_stash_t *stash = dafi_stash(arena, id);
    dafi_assert(stash->num_pins == 0);
    uint64_t bytes = (uint64_t)stash->num_pages << arena->pages.page_shift;
    uint32_t *cells = malloc(stash->num_pages * sizeof *cells + 1);
    bool is_written = cells && grow_free_cells(arena, stash->num_pages) && write_pages(arena, stash, cells);
    if (is_written) {
        dafi_stash_unindex(arena, stash);
        dafi_stash_count_planes(arena, stash, -1);
        dafi_pages_give(arena, stash->pages, stash->num_pages);
        for (uint32_t i = 0; i < stash->num_pages; i++) stash->pages[i] = (uint8_t *)(uintptr_t)cells[i];
        stash->is_spilled = 1;
        arena->counts.spills++;
        arena->counts.spilled_bytes += bytes;
        dafi_event(arena, DAFI_EVENT_SPILL, stash->slot_id, bytes, 0, NULL);
    }
    free(cells);
    return is_written;
}

void dafi_spill_forget(daf_arena_t *arena, daf_stash_t *stash) {
    for (uint32_t i = 0; i < stash->num_pages; i++) give_cell(arena, (uint32_t)(uintptr_t)stash->pages[i]);
    arena->counts.spilled_bytes -= (uint64_t)stash->num_pages << arena->pages.page_shift;
    stash->is_spilled = 0;
    if (arena->counts.spilled_bytes || arena->spill_file < 0) return;
    arena->num_free_cells = arena->num_spill_cells = 0;
    dafi_file_empty(arena->spill_file);
}

bool dafi_spill_restore(daf_arena_t *arena, daf_stash_t *stash) {
    uint32_t num_pages = stash->num_pages;
    uint8_t **fresh = malloc(num_pages * sizeof *fresh + 1);
    if (!fresh || !dafi_admit_pages(arena, num_pages)) {
        free(fresh);
        return false;
    }
    dafi_pages_take(arena, fresh, num_pages);
    bool is_read = true;
    for (uint32_t i = 0; i < num_pages && is_read; i++)
        is_read = move_page(arena, fresh[i], (uint32_t)(uintptr_t)stash->pages[i], false);
    if (is_read) {
        dafi_spill_forget(arena, stash);
        for (uint32_t i = 0; i < num_pages; i++) stash->pages[i] = fresh[i];
        dafi_stash_count_planes(arena, stash, 1);
        arena->counts.restores++;
        dafi_event(arena, DAFI_EVENT_RESTORE, stash->slot_id, (uint64_t)num_pages << arena->pages.page_shift, 0, NULL);
    } else {
        dafi_pages_give(arena, fresh, num_pages);
    }
    free(fresh);
    return is_read;
}

daf_status_t dafi_spill_open(daf_arena_t *arena, const char *folder) {
    arena->spill_file = -1;
    if (!folder) return DAF_OK;
    arena->spill_file = dafi_file_nameless(folder);
    if (arena->spill_file >= 0 && arena->backend.copy_out) arena->spill_buffer = malloc(arena->pages.page_bytes);
    return arena->spill_file < 0 || (arena->backend.copy_out && !arena->spill_buffer) ? DAF_SYSTEM : DAF_OK;
}

/* What was spilled before the fork is the parent's: a child that asks for it gets the answer that there is no room. */
void dafi_spill_orphan(daf_arena_t *arena) {
    dafi_file_close(&arena->spill_file);
}

void dafi_spill_close(daf_arena_t *arena) {
    dafi_file_close(&arena->spill_file);
    free(arena->free_cells);
    free(arena->spill_buffer);
}
