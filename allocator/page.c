/* Making, filling and finishing the stats page. Layout: page.h. */
#define _GNU_SOURCE
#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(sizeof(dafi_page_header_t) <= 256, "the header is 256 bytes");
_Static_assert(sizeof(dafi_slot_record_t) <= 256, "a slot row is 256 bytes");
_Static_assert(sizeof(dafi_event_record_t) == 128, "an event is 128 bytes");
_Static_assert(sizeof(dafi_outcome_record_t) == 192 && sizeof(dafi_request_t) == 64, "the command page is packed");
_Static_assert(offsetof(dafi_command_page_t, requests) == 64, "its header is 64 bytes");

void dafi_sequence_begin(_Atomic uint64_t *sequence) {
    atomic_store_explicit(sequence, atomic_load_explicit(sequence, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
}

void dafi_sequence_end(_Atomic uint64_t *sequence) {
    atomic_store_explicit(sequence, atomic_load_explicit(sequence, memory_order_relaxed) + 1, memory_order_release);
}

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

/* Field 22 of /proc/self/stat. The name in field 2 may hold spaces and brackets: count from the last bracket. */
static uint64_t own_start_time(void) {
    char text[1024] = "";
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    char *at = got > 0 ? strrchr(text, ')') : NULL;
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* A new file of that size, mapped; its pages exist, so that a full disk shows here and not as a signal later. */
static void *map_new_file(const char *path, uint64_t num_bytes) {
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return NULL;
    void *base = MAP_FAILED;
    int failed = posix_fallocate(file, 0, (off_t)num_bytes);
    if (failed)
        errno = failed;
    else
        base = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int saved = errno;
    close(file);
    errno = saved;
    if (base != MAP_FAILED) return base;
    unlink(path);
    return NULL;
}

/* The first free name: a process may open several arenas, one after the other or at once. */
static bool map_files(struct dafi_page *page, const char *folder, uint64_t start_time) {
    for (int i = 1; i < 10000; i++) {
        char suffix[16] = "";
        if (i > 1) snprintf(suffix, sizeof suffix, "-%d", i);
        unsigned long long start = start_time;
        snprintf(page->path, sizeof page->path, "%s/%d-%llu%s.stats", folder, (int)getpid(), start, suffix);
        snprintf(page->command_path, sizeof page->path, "%s/%d-%llu%s.cmd", folder, (int)getpid(), start, suffix);
        page->header = map_new_file(page->path, page->num_bytes);
        if (page->header) break;
        if (errno != EEXIST) return false;
    }
    if (!page->header) return false;
    unlink(page->command_path);
    page->commands = map_new_file(page->command_path, sizeof *page->commands);
    return page->commands != NULL;
}

static void fill_page(struct dafi_page *page, const dafi_page_header_t *plan, uint64_t start_time,
                      const char *identity) {
    dafi_page_header_t *header = page->header;
    memcpy(header, plan, sizeof *plan);
    header->version = DAFI_PAGE_VERSION;
    header->header_bytes = 256;
    header->total_bytes = page->num_bytes;
    header->pid = (uint32_t)getpid();
    header->start_time = start_time;
    header->opened_ns = dafi_wall_ns();
    snprintf(dafi_section_at(page, &header->identity, 0), DAFI_IDENTITY_BYTES, "%s", identity);
    memcpy(dafi_section_at(page, &header->fields, 0), daf_stats_fields(), daf_stats_num_fields() * sizeof(daf_field_t));
    for (uint32_t i = 0; i < daf_stats_num_fields(); i++)
        ((daf_field_t *)dafi_section_at(page, &header->fields, i))->offset = 8 * (i + 1);
    dafi_columns_write(page);
    dafi_kinds_write(page);
    page->commands->version = DAFI_PAGE_VERSION;
    page->commands->count = DAFI_NUM_COMMANDS;
    memcpy(page->commands->magic, "DAFCMND1", 8);
    memcpy(header->magic, "DAFSTATS", 8); /* last: a page without it is not ready to be read */
}

static void free_page(struct dafi_page *page) {
    if (page->header) munmap(page->header, page->num_bytes);
    if (page->commands) munmap(page->commands, sizeof *page->commands);
    free(page);
}

daf_status_t daf_arena_publish(daf_arena_t *arena, const char *folder, const char *identity) {
    struct dafi_page *page = arena->page ? NULL : calloc(1, sizeof *page);
    if (!page) return arena->page ? DAF_INVALID : DAF_SYSTEM;
    dafi_page_header_t plan = {0};
    uint64_t start_time = own_start_time();
    page->num_bytes = lay_out(&plan);
    if (!map_files(page, folder, start_time)) {
        if (page->header) unlink(page->path);
        free_page(page);
        return DAF_SYSTEM;
    }
    fill_page(page, &plan, start_time, identity);
    dafi_lock(arena);
    arena->page = page;
    dafi_publish(arena);
    atomic_store(&page->header->state, DAFI_PAGE_LIVE);
    dafi_unlock(arena);
    return dafi_heart_start(arena) ? DAF_OK : DAF_SYSTEM;
}

const char *daf_arena_page_path(const daf_arena_t *arena) {
    return arena->page ? arena->page->path : "";
}

void dafi_publish(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    if (!page) return;
    _Atomic uint64_t *sequence = dafi_section_at(page, &page->header->values, 0);
    uint64_t cells[256];
    dafi_stats_collect(arena, cells);
    dafi_sequence_begin(sequence);
    memcpy((uint8_t *)sequence + 8, cells, 8 * daf_stats_num_fields());
    dafi_sequence_end(sequence);
    atomic_store_explicit(&page->header->heartbeat_ns, dafi_monotonic_ns(), memory_order_release);
}

void daf_arena_flush(daf_arena_t *arena) {
    dafi_lock(arena);
    if (arena->page) {
        dafi_commands_apply(arena);
        dafi_slots_write(arena);
        dafi_map_write(arena);
    }
    dafi_publish(arena);
    dafi_unlock(arena);
}

void dafi_page_close(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    if (!page) return;
    dafi_heart_stop(arena);
    daf_arena_flush(arena);
    dafi_lock(arena);
    atomic_store(&page->header->closed_ns, dafi_wall_ns());
    atomic_store(&page->header->state, DAFI_PAGE_FINISHED);
    arena->page = NULL;
    dafi_unlock(arena);
    free_page(page);
}

void dafi_page_orphan(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    if (!page) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void *stats = mmap(page->header, page->num_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    void *commands = mmap(page->commands, sizeof *page->commands, PROT_READ | PROT_WRITE, flags, -1, 0);
    (void)stats, (void)commands; /* replacing a mapping of our own by a fixed one cannot fail for lack of addresses */
    page->has_heart = false;
    arena->page = NULL; /* the struct leaks in the child: a thread of the parent may have been reading it */
}
