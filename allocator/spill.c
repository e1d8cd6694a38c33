/* Spill: when every floor is reached, whole stashes go to a file, the oldest first (backward wants them last), and come
 * back when pinned. The file has no name, so nothing is left behind when the process ends, however it ends.
 *
 * The file is cut into slots of one page. While a stash is spilled, its page pointers hold slot numbers instead of
 * addresses. Reading and writing happen under the arena's lock: spilling is for runs that would end otherwise, not for
 * speed. */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool move_page(daf_arena_t *arena, uint8_t *page, uint32_t slot, bool is_write) {
    off_t offset = (off_t)((uint64_t)slot << arena->pages.page_shift);
    size_t num_bytes = arena->pages.page_bytes;
    void *self = arena->backend.self;
    uint8_t *buffer = arena->backend.copy_out ? arena->spill_buffer : page;
    if (is_write && arena->backend.copy_out && arena->backend.copy_out(self, buffer, page, num_bytes) != DAF_OK)
        return false;
    ssize_t moved = is_write ? pwrite(arena->spill_file, buffer, num_bytes, offset)
                             : pread(arena->spill_file, buffer, num_bytes, offset);
    if (moved != (ssize_t)num_bytes) return false;
    if (!is_write && arena->backend.copy_in) return arena->backend.copy_in(self, page, buffer, num_bytes) == DAF_OK;
    return true;
}

static uint32_t take_slot(daf_arena_t *arena) {
    if (arena->num_free_slots) return arena->free_slots[--arena->num_free_slots];
    return arena->num_spill_slots++;
}

static void give_slot(daf_arena_t *arena, uint32_t slot) {
    arena->free_slots[arena->num_free_slots++] = slot;
}

/* Room to note every slot as free, should it come to that. */
static bool grow_free_slots(daf_arena_t *arena, uint32_t num_pages) {
    uint64_t wanted = (uint64_t)arena->num_spill_slots + num_pages;
    if (wanted > UINT32_MAX) return false;
    if (wanted <= arena->free_slots_capacity) return true;
    uint32_t *larger = realloc(arena->free_slots, 2 * wanted * sizeof *larger);
    if (!larger) return false;
    arena->free_slots = larger;
    arena->free_slots_capacity = 2 * wanted;
    return true;
}

static bool write_pages(daf_arena_t *arena, const daf_stash_t *stash, uint32_t *slots) {
    for (uint32_t i = 0; i < stash->num_pages; i++) {
        slots[i] = take_slot(arena);
        if (move_page(arena, stash->pages[i], slots[i], true)) continue;
        for (uint32_t j = 0; j <= i; j++) give_slot(arena, slots[j]);
        return false;
    }
    return true;
}

bool dafi_spill_one(daf_arena_t *arena) {
    uint32_t id = arena->index.first;
    if (arena->spill_file < 0 || id == 0) return false;
    daf_stash_t *stash = dafi_stash(arena, id);
    uint64_t bytes = (uint64_t)stash->num_pages << arena->pages.page_shift;
    uint32_t *slots = malloc(stash->num_pages * sizeof *slots + 1);
    bool is_written = slots && grow_free_slots(arena, stash->num_pages) && write_pages(arena, stash, slots);
    if (is_written) {
        dafi_stash_unindex(arena, stash);
        dafi_stash_count_planes(arena, stash, -1);
        dafi_pages_give(arena, stash->pages, stash->num_pages);
        for (uint32_t i = 0; i < stash->num_pages; i++) stash->pages[i] = (uint8_t *)(uintptr_t)slots[i];
        stash->is_spilled = 1;
        arena->counts.spills++;
        arena->counts.spilled_bytes += bytes;
        dafi_event(arena, DAFI_EVENT_SPILL, stash->slot_id, bytes, 0, NULL);
    }
    free(slots);
    return is_written;
}

void dafi_spill_forget(daf_arena_t *arena, daf_stash_t *stash) {
    for (uint32_t i = 0; i < stash->num_pages; i++) give_slot(arena, (uint32_t)(uintptr_t)stash->pages[i]);
    arena->counts.spilled_bytes -= (uint64_t)stash->num_pages << arena->pages.page_shift;
    stash->is_spilled = 0;
    if (arena->counts.spilled_bytes || arena->spill_file < 0) return;
    arena->num_free_slots = arena->num_spill_slots = 0;
    if (ftruncate(arena->spill_file, 0) != 0) return; /* it only stays longer than needed */
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
    char path[4096];
    arena->spill_file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (arena->spill_file < 0) { /* not every file system knows nameless files */
        snprintf(path, sizeof path, "%s/daf-spill-XXXXXX", folder);
        arena->spill_file = mkostemp(path, O_CLOEXEC);
        if (arena->spill_file >= 0) unlink(path);
    }
    if (arena->spill_file >= 0 && arena->backend.copy_out) arena->spill_buffer = malloc(arena->pages.page_bytes);
    return arena->spill_file < 0 || (arena->backend.copy_out && !arena->spill_buffer) ? DAF_SYSTEM : DAF_OK;
}

/* What was spilled before the fork is the parent's: a child that asks for it is told that there is no room. */
void dafi_spill_orphan(daf_arena_t *arena) {
    if (arena->spill_file >= 0) close(arena->spill_file);
    arena->spill_file = -1;
}

void dafi_spill_close(daf_arena_t *arena) {
    if (arena->spill_file >= 0) close(arena->spill_file);
    free(arena->free_slots);
    free(arena->spill_buffer);
}
