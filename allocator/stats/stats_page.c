/* Making, filling and finishing the stats page. Layout: stats_page.h. */
#define _GNU_SOURCE
#include "stats/stats_page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(dafi_page_header_t) <= 256, "the header is 256 bytes");
_Static_assert(sizeof(dafi_slot_record_t) <= 256, "a slot row is 256 bytes");
_Static_assert(sizeof(dafi_event_record_t) == 128, "an event is 128 bytes");
_Static_assert(sizeof(dafi_outcome_record_t) == 192 && sizeof(dafi_request_t) == 64, "the command page is packed");
_Static_assert(offsetof(dafi_command_page_t, requests) == 64, "its header is 64 bytes");

static uint64_t place(dafi_section_t *section, uint64_t at, uint32_t stride, uint32_t count) {
    *section = (dafi_section_t){.offset = (uint32_t)at, .stride = stride, .count = count};
    return dafi_round_up(at + (uint64_t)stride * count, 64);
}

static uint64_t lay_out(dafi_page_header_t *header) {
    uint64_t at = place(&header->identity, 256, DAFI_IDENTITY_BYTES, 1);
    at = place(&header->fields, at, sizeof(daf_field_t), daf_stats_num_fields());
    at = place(&header->values, at, 8, 1 + daf_stats_num_fields());
    at = place(&header->columns, at, sizeof(daf_field_t), 12);
    at = place(&header->slots, at, 256, DAF_MAX_SLOTS);
    at = place(&header->kinds, at, 16, DAFI_NUM_EVENTS);
    at = place(&header->events, at, sizeof(dafi_event_record_t), DAFI_NUM_EVENTS_KEPT);
    at = place(&header->map, at, sizeof(dafi_map_record_t), 1);
    return dafi_round_up(at, 4096);
}

/* The first free name: a process may open several arenas, one after the other or at once. */
static bool create_files(struct dafi_page *page, const char *folder, uint64_t start_time) {
    for (int i = 1; i < 10000 && page->file < 0; i++) {
        char suffix[16] = "";
        if (i > 1) snprintf(suffix, sizeof suffix, "-%d", i);
        unsigned long long start = start_time;
        snprintf(page->path, sizeof page->path, "%s/%d-%llu%s.stats", folder, (int)getpid(), start, suffix);
        snprintf(page->command_path, sizeof page->path, "%s/%d-%llu%s.cmd", folder, (int)getpid(), start, suffix);
        page->file = dafi_file_create(page->path);
        if (page->file < 0 && errno != EEXIST) return false;
    }
    unlink(page->command_path);
    if (page->file >= 0) page->command_file = dafi_file_create(page->command_path);
    return page->command_file >= 0;
}

/* The magic is written last, when all else is there: a page without it is not ready to be read. */
static bool write_whole(struct dafi_page *page) {
    const uint8_t *content = (const uint8_t *)page->staged;
    uint64_t magic_bytes = sizeof page->staged->magic;
    return dafi_file_write(page->file, content + magic_bytes, page->num_bytes - magic_bytes, magic_bytes) &&
           dafi_file_write(page->file, content, magic_bytes, 0);
}

static bool fill_page(struct dafi_page *page, const dafi_page_header_t *plan, uint64_t start_time,
                      const char *identity) {
    dafi_page_header_t *header = page->staged;
    *page->recent = *header = *plan;
    memcpy(header->magic, "DAFSTATS", 8);
    header->version = DAFI_PAGE_VERSION;
    header->header_bytes = 256;
    header->total_bytes = page->num_bytes;
    header->pid = (uint32_t)getpid();
    header->start_time = start_time;
    header->opened_ns = dafi_wall_ns();
    snprintf(dafi_section_at(header, &header->identity, 0), DAFI_IDENTITY_BYTES, "%s", identity);
    memcpy(dafi_section_at(header, &header->fields, 0), daf_stats_fields(),
           daf_stats_num_fields() * sizeof(daf_field_t));
    for (uint32_t i = 0; i < daf_stats_num_fields(); i++)
        ((daf_field_t *)dafi_section_at(header, &header->fields, i))->offset = 8 * (i + 1);
    dafi_columns_write(header);
    dafi_kinds_write(header);
    page->commands.version = DAFI_PAGE_VERSION;
    page->commands.count = DAFI_NUM_COMMANDS;
    memcpy(page->commands.magic, "DAFCMND1", 8);
    return write_whole(page) && dafi_file_write(page->command_file, &page->commands, sizeof page->commands, 0);
}

static void free_page(struct dafi_page *page) {
    dafi_file_close(&page->file);
    dafi_file_close(&page->command_file);
    dafi_unmap(page->recent, page->num_bytes);
    dafi_unmap(page->staged, page->num_bytes);
    pthread_mutex_destroy(&page->write_lock);
    free(page);
}

static struct dafi_page *open_page(const char *folder, const char *identity) {
    struct dafi_page *page = calloc(1, sizeof *page);
    if (!page) return NULL;
    dafi_page_header_t plan = {0};
    uint64_t start_time = dafi_process_start_time();
    page->num_bytes = lay_out(&plan);
    page->file = page->command_file = -1;
    pthread_mutex_init(&page->write_lock, NULL);
    page->recent = dafi_map(page->num_bytes);
    page->staged = dafi_map(page->num_bytes);
    if (page->recent && page->staged && create_files(page, folder, start_time) &&
        fill_page(page, &plan, start_time, identity))
        return page;
    int why = errno;
    if (page->file >= 0) unlink(page->path);
    if (page->command_file >= 0) unlink(page->command_path);
    free_page(page);
    errno = why;
    return NULL;
}

daf_status_t daf_arena_publish(daf_arena_t *arena, const char *folder, const char *identity) {
    if (arena->page) return DAF_INVALID;
    struct dafi_page *page = open_page(folder, identity);
    if (!page) return DAF_SYSTEM;
    dafi_lock(arena);
    arena->page = page;
    dafi_unlock(arena);
    page->staged->state = DAFI_PAGE_LIVE;
    dafi_page_write(arena, true);
    return dafi_heart_start(arena) ? DAF_OK : DAF_SYSTEM;
}

const char *daf_arena_page_path(const daf_arena_t *arena) {
    return arena->page ? arena->page->path : "";
}

/* A section of one record whose first 8 bytes are its sequence: odd while the rest changes, even when it has. */
static void write_group(struct dafi_page *page, const dafi_section_t *section) {
    uint64_t *sequence = dafi_section_at(page->staged, section, 0);
    uint64_t num_bytes = (uint64_t)section->stride * section->count;
    for (int i = 0; i < 2; i++) {
        ++*sequence;
        dafi_file_write(page->file, sequence, num_bytes, section->offset);
    }
}

static uint64_t stage(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    dafi_process_t process = dafi_process_now();
    uint64_t first_event;
    dafi_lock(arena);
    arena->process = process;
    dafi_commands_apply(arena);
    dafi_rows_stage(arena);
    dafi_events_stage(arena, &first_event);
    dafi_stats_collect(arena, dafi_section_at(page->staged, &page->staged->values, 1));
    dafi_unlock(arena);
    return first_event;
}

void dafi_page_write(daf_arena_t *arena, bool with_map) {
    struct dafi_page *page = arena->page;
    pthread_mutex_lock(&page->write_lock);
    dafi_commands_read(page);
    uint64_t first_event = stage(arena);
    if (with_map) dafi_zones_stage(arena);
    page->staged->heartbeat_ns = dafi_monotonic_ns();
    if (dafi_file_bytes(page->file) < page->num_bytes) write_whole(page); /* it was cut off */
    dafi_rows_write(page);
    dafi_events_write(page, first_event);
    write_group(page, &page->staged->values);
    if (with_map) write_group(page, &page->staged->map);
    dafi_file_write(page->file, page->staged, sizeof *page->staged, 0);
    dafi_commands_write(page);
    pthread_mutex_unlock(&page->write_lock);
}

void dafi_publish(daf_arena_t *arena) {
    if (arena->page) dafi_page_write(arena, false);
}

void daf_arena_flush(daf_arena_t *arena) {
    if (arena->page) dafi_page_write(arena, true);
}

void dafi_page_close(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    if (!page) return;
    dafi_heart_stop(arena);
    page->staged->closed_ns = dafi_wall_ns();
    page->staged->state = DAFI_PAGE_FINISHED;
    dafi_page_write(arena, true);
    dafi_lock(arena);
    arena->page = NULL;
    dafi_unlock(arena);
    free_page(page);
}

/* The struct leaks in the child: a thread of the parent may have been using it. */
void dafi_page_orphan(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    if (!page) return;
    dafi_file_close(&page->file);
    dafi_file_close(&page->command_file);
    page->has_heart = false;
    arena->page = NULL;
}
