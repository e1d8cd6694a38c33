/* Small blocks: slabs of 64 KiB, each of one size. Torch asks for scalars, indices and biases by the thousand: a
 * request here is a find-first-bit, a release a division; both touch the slab's record alone, never the memory. */
#include "core/core.h"

#include <string.h>

/* 64-byte steps to 1 KiB, then four sizes per doubling: a block is at most a quarter larger than asked, beyond 256
 * bytes. */
static const uint16_t class_bytes[DAFI_NUM_CLASSES] = {64,   128,  192,  256,  320,  384,  448,  512,  576,  640,
                                                       704,  768,  832,  896,  960,  1024, 1280, 1536, 1792, 2048,
                                                       2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192};

static uint32_t class_of(uint32_t num_bytes) {
    if (num_bytes <= 1024) return (num_bytes + 63) / 64 - 1;
    uint32_t order = 31 - (uint32_t)__builtin_clz(num_bytes - 1); /* 2^order < num_bytes <= 2^(order + 1) */
    return 16 + (order - 10) * 4 + ((num_bytes - 1) >> (order - 2)) % 4;
}

static dafi_slab_t *slab(const dafi_tensors_t *zone, uint32_t id) {
    return dafi_table_at(&zone->slabs, id);
}

static void list_add(dafi_tensors_t *zone, uint32_t id) {
    uint32_t *head = &zone->partial[slab(zone, id)->class_id];
    slab(zone, id)->prev = 0;
    slab(zone, id)->next = *head;
    if (*head) slab(zone, *head)->prev = id;
    *head = id;
}

static void list_remove(dafi_tensors_t *zone, uint32_t id) {
    dafi_slab_t *it = slab(zone, id);
    *(it->prev ? &slab(zone, it->prev)->next : &zone->partial[it->class_id]) = it->next;
    if (it->next) slab(zone, it->next)->prev = it->prev;
}

static uint32_t make_slab(daf_arena_t *arena, uint32_t class_id, daf_status_t *status) {
    dafi_tensors_t *zone = &arena->tensors;
    uint32_t id = dafi_table_take(&zone->slabs);
    *status = DAF_OUT_OF_MEMORY;
    if (id == 0) return 0;
    uint32_t extent = dafi_extent_alloc(arena, DAFI_SLAB_BYTES, DAFI_SLAB, status);
    if (extent == 0) {
        dafi_table_give(&zone->slabs, id);
        return 0;
    }
    dafi_slab_t *it = slab(zone, id);
    uint16_t num_blocks = (uint16_t)(DAFI_SLAB_BYTES / class_bytes[class_id]);
    *it = (dafi_slab_t){
        .extent = extent, .class_id = (uint16_t)class_id, .num_blocks = num_blocks, .num_free = num_blocks};
    for (uint32_t i = 0; i < num_blocks; i++) it->free_bits[i / 64] |= UINT64_C(1) << i % 64;
    dafi_extent(zone, extent)->slab = id;
    uint64_t first = dafi_extent(zone, extent)->offset / DAFI_GRANULE;
    for (uint32_t i = 0; i < DAFI_SLAB_BYTES / DAFI_GRANULE; i++) zone->owner[first + i] = extent;
    zone->slack_bytes += DAFI_SLAB_BYTES;
    zone->idle_bytes += DAFI_SLAB_BYTES;
    zone->idle[class_id] = id;
    list_add(zone, id);
    return id;
}

uint64_t dafi_taken_bytes(uint64_t num_bytes) {
    return num_bytes && num_bytes <= DAFI_SMALL_MAX ? DAFI_SLAB_BYTES : num_bytes;
}

void *dafi_small_alloc(daf_arena_t *arena, uint64_t num_bytes, daf_status_t *status) {
    dafi_tensors_t *zone = &arena->tensors;
    uint32_t class_id = class_of((uint32_t)num_bytes), id = zone->partial[class_id];
    *status = DAF_OK;
    if (id == 0) id = make_slab(arena, class_id, status);
    if (id == 0) return NULL;
    dafi_slab_t *it = slab(zone, id);
    if (it->num_free == it->num_blocks) {
        zone->idle[class_id] = 0;
        zone->idle_bytes -= DAFI_SLAB_BYTES;
    }
    uint32_t word = 0;
    while (it->free_bits[word] == 0) word++;
    uint32_t block = word * 64 + (uint32_t)__builtin_ctzll(it->free_bits[word]);
    it->free_bits[word] &= it->free_bits[word] - 1;
    if (--it->num_free == 0) list_remove(zone, id);
    dafi_assert_internal(zone->slack_bytes >= class_bytes[class_id]);
    zone->slack_bytes -= class_bytes[class_id];
    zone->live_bytes += class_bytes[class_id];
    return zone->base + dafi_extent(zone, it->extent)->offset + (uint64_t)block * class_bytes[class_id];
}

uint32_t dafi_small_block_bytes(const dafi_tensors_t *zone, const dafi_extent_t *extent, uint64_t offset) {
    const dafi_slab_t *it = slab(zone, extent->slab);
    uint32_t inside = (uint32_t)(offset - extent->offset), bytes = class_bytes[it->class_id], block = inside / bytes;
    bool is_live = inside % bytes == 0 && block < it->num_blocks && !(it->free_bits[block / 64] >> block % 64 & 1);
    return is_live ? bytes : 0;
}

/* An empty slab becomes a free extent. */
static void dissolve(daf_arena_t *arena, uint32_t id) {
    dafi_tensors_t *zone = &arena->tensors;
    uint32_t extent = slab(zone, id)->extent;
    list_remove(zone, id);
    zone->slack_bytes -= DAFI_SLAB_BYTES;
    dafi_table_give(&zone->slabs, id);
    dafi_extent_free(arena, extent);
}

daf_status_t dafi_small_free(daf_arena_t *arena, dafi_extent_t *extent, uint64_t offset) {
    dafi_tensors_t *zone = &arena->tensors;
    uint32_t bytes = dafi_small_block_bytes(zone, extent, offset), id = extent->slab;
    if (bytes == 0) return DAF_INVALID;
    dafi_slab_t *it = slab(zone, id);
    uint32_t block = (uint32_t)(offset - extent->offset) / bytes;
    it->free_bits[block / 64] |= UINT64_C(1) << block % 64;
    zone->slack_bytes += bytes;
    zone->live_bytes -= bytes;
    if (it->num_free++ == 0) list_add(zone, id);
    if (it->num_free < it->num_blocks) return DAF_OK;
    if (zone->idle[it->class_id]) {
        dissolve(arena, id);
    } else {
        zone->idle[it->class_id] = id;
        zone->idle_bytes += DAFI_SLAB_BYTES;
    }
    return DAF_OK;
}

void dafi_small_trim(daf_arena_t *arena) {
    dafi_tensors_t *zone = &arena->tensors;
    for (uint32_t i = 0; i < DAFI_NUM_CLASSES && zone->idle_bytes; i++) {
        if (zone->idle[i] == 0) continue;
        dissolve(arena, zone->idle[i]);
        zone->idle[i] = 0;
        zone->idle_bytes -= DAFI_SLAB_BYTES;
    }
}
