/* Statistics: the table of fields and the cells that belong to it, both from fields.h. */
#include "core/core.h"

#include <string.h>

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
#include "stats/fields.h"
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
#define GAUGE(name, unit, help, value) *cells++ = (uint64_t)(value);
#define COUNT(name, unit, help, value) *cells++ = (uint64_t)(value);
#define REAL(name, unit, help, value) *cells++ = real_cell(value);
#define REAL_COUNT(name, unit, help, value) *cells++ = real_cell(value);
#include "stats/fields.h"
}

void daf_arena_stats(daf_arena_t *arena, uint64_t *cells) {
    dafi_process_t process = dafi_process_now();
    dafi_lock(arena);
    arena->process = process;
    dafi_stats_collect(arena, cells);
    dafi_unlock(arena);
}
