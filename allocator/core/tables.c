/* The arena's own books: tables of numbered records, bitmaps of three levels. */
#include "core/core.h"

#include <string.h>

#define HUGE_BYTES (UINT64_C(2) << 20)

bool dafi_table_open(dafi_table_t *table, uint32_t stride, uint32_t capacity) {
    *table = (dafi_table_t){.stride = stride, .capacity = capacity, .num_used = 1};
    table->base = dafi_map((uint64_t)stride * capacity);
    /* A large tree is walked at random: huge pages save a third of the time at 10^5 nodes. A small one stays small. */
    uint64_t num_bytes = (uint64_t)stride * capacity;
    if (table->base && num_bytes > HUGE_BYTES) dafi_map_prefer_huge(table->base + HUGE_BYTES, num_bytes - HUGE_BYTES);
    return table->base != NULL;
}

void dafi_table_close(dafi_table_t *table) {
    dafi_unmap(table->base, (uint64_t)table->stride * table->capacity);
    table->base = NULL;
}

uint32_t dafi_table_take(dafi_table_t *table) {
    uint32_t id = table->free_head;
    if (id) {
        memcpy(&table->free_head, dafi_table_at(table, id), sizeof id);
        return id;
    }
    return table->num_used < table->capacity ? table->num_used++ : 0;
}

bool dafi_table_has(const dafi_table_t *table, uint32_t count) {
    uint32_t left = table->capacity - table->num_used;
    for (uint32_t id = table->free_head; id && left < count; left++) memcpy(&id, dafi_table_at(table, id), sizeof id);
    return left >= count;
}

void dafi_table_give(dafi_table_t *table, uint32_t id) {
    memcpy(dafi_table_at(table, id), &table->free_head, sizeof id);
    table->free_head = id;
}

static uint64_t level_words(uint32_t num_bits, int level) {
    uint64_t words = num_bits;
    for (int i = 0; i <= level; i++) words = (words + 63) / 64;
    return words;
}

bool dafi_bitmap_open(dafi_bitmap_t *map, uint32_t num_bits) {
    map->num_bits = num_bits;
    for (int i = 0; i < 3; i++)
        if (!(map->level[i] = dafi_map(level_words(num_bits, i) * 8))) return false;
    return true;
}

void dafi_bitmap_close(dafi_bitmap_t *map) {
    for (int i = 0; i < 3; i++) dafi_unmap(map->level[i], level_words(map->num_bits, i) * 8);
}

void dafi_bitmap_assign(dafi_bitmap_t *map, uint32_t bit, bool value) {
    for (int i = 0; i < 3; i++) {
        uint64_t *word = &map->level[i][bit / 64], mask = UINT64_C(1) << bit % 64;
        uint64_t was = *word;
        *word = value ? was | mask : was & ~mask;
        if ((was != 0) == (*word != 0)) return;
        bit /= 64;
    }
}

bool dafi_bitmap_get(const dafi_bitmap_t *map, uint32_t bit) {
    return map->level[0][bit / 64] >> bit % 64 & 1;
}

static uint32_t descend(const dafi_bitmap_t *map, uint64_t top_word, bool from_end) {
    uint32_t at = (uint32_t)top_word;
    for (int i = 2; i >= 0; i--) {
        uint64_t word = map->level[i][at];
        at = at * 64 + (uint32_t)(from_end ? 63 - __builtin_clzll(word) : __builtin_ctzll(word));
    }
    return at;
}

uint32_t dafi_bitmap_first(const dafi_bitmap_t *map) {
    uint64_t num_words = level_words(map->num_bits, 2);
    for (uint64_t i = 0; i < num_words; i++)
        if (map->level[2][i]) return descend(map, i, false);
    return map->num_bits;
}

uint32_t dafi_bitmap_last(const dafi_bitmap_t *map) {
    for (uint64_t i = level_words(map->num_bits, 2); i-- > 0;)
        if (map->level[2][i]) return descend(map, i, true);
    return map->num_bits;
}
