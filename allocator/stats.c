/* Statistics: the table of fields and the cells that belong to it, both from fields.h. */
#define _GNU_SOURCE
#include "core.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct process {
    uint64_t resident_bytes, num_faults;
} process_t;

static process_t sample_process(void) {
    char text[128] = "";
    process_t process = {0};
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t got = read(file, text, sizeof text - 1);
        const char *second = got > 0 ? strchr(text, ' ') : NULL;
        if (second) process.resident_bytes = strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
        close(file);
    }
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) process.num_faults = (uint64_t)(usage.ru_minflt + usage.ru_majflt);
    return process;
}

static uint64_t dafi_evictions(const daf_arena_t *arena) {
    uint64_t sum = 0;
    for (int i = 0; i < DAFI_NUM_REASONS; i++) sum += arena->counts.evictions[i];
    return sum;
}

static uint64_t dafi_largest_free(const daf_arena_t *arena) {
    uint32_t id = dafi_tree_last(&arena->tensors.dirty);
    return id ? dafi_extent(&arena->tensors, id)->num_bytes : 0;
}

static double dafi_fragmentation(const daf_arena_t *arena) {
    uint64_t all = arena->tensors.dirty_bytes;
    return all ? 1.0 - (double)dafi_largest_free(arena) / (double)all : 0.0;
}

/* clang-format off */
#define FIELD(name_, unit_, help_, kind_, type_) {.name = #name_, .unit = unit_, .help = help_, .kind = kind_, .type = type_, .num_bytes = 8},
#define GAUGE(name, unit, help, value) FIELD(name, unit, help, 1, 0)
#define COUNT(name, unit, help, value) FIELD(name, unit, help, 0, 0)
#define REAL(name, unit, help, value) FIELD(name, unit, help, 1, 1)
#define REAL_COUNT(name, unit, help, value) FIELD(name, unit, help, 0, 1)
static const daf_field_t fields[] = {
#include "fields.h"
};
#undef GAUGE
#undef COUNT
#undef REAL
#undef REAL_COUNT
/* clang-format on */

uint32_t daf_stats_num_fields(void) {
    return sizeof fields / sizeof *fields;
}
const daf_field_t *daf_stats_fields(void) {
    return fields;
}

static uint64_t real_cell(double value) {
    uint64_t cell;
    memcpy(&cell, &value, sizeof cell);
    return cell;
}

void dafi_stats_collect(const daf_arena_t *arena, uint64_t *cells) {
    process_t process = sample_process();
#define GAUGE(name, unit, help, value) *cells++ = (uint64_t)(value);
#define COUNT(name, unit, help, value) *cells++ = (uint64_t)(value);
#define REAL(name, unit, help, value) *cells++ = real_cell(value);
#define REAL_COUNT(name, unit, help, value) *cells++ = real_cell(value);
#include "fields.h"
}

void daf_arena_stats(daf_arena_t *arena, uint64_t *cells) {
    dafi_lock(arena);
    dafi_stats_collect(arena, cells);
    dafi_unlock(arena);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t dafi_monotonic_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}
uint64_t dafi_wall_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}
