#include "torch/cpu_door.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "stats/meter_internal.h"
#include "trace/profile_internal.h"
#include "trace/trace_internal.h"

/* begin and end are the arena's tensor zone. An arena is destroyed with its last block, so a door never asks a retired
 * arena anything but to take a block back: whether an address is its own is answered from this copy. */
typedef struct door {
    daf_arena_t *arena;
    uintptr_t begin, end; /* end is 0 while the door is unused */
    uint64_t num_blocks;  /* out now, and one while in service */
    uint64_t num_inside;  /* threads inside alloc: the arena may not be closed under them */
} door_t;

static door_t doors[DAF_MAX_DOORS];
static uint32_t num_doors; /* doors ever used */
static door_t *in_service;
static daf_meter_t meter;
static _Thread_local uint64_t num_own; /* of num_inside: the callback of a request may close the door */

static door_t *door_of(const void *block) {
    uintptr_t address = (uintptr_t)block;
    uint32_t count = __atomic_load_n(&num_doors, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < count; i++)
        if (address < __atomic_load_n(&doors[i].end, __ATOMIC_ACQUIRE) && address >= doors[i].begin) return &doors[i];
    return NULL;
}

/* The addresses are given up before the arena can give them to anyone else. */
static void leave(door_t *door) {
    if (__atomic_sub_fetch(&door->num_blocks, 1, __ATOMIC_ACQ_REL) == 0)
        __atomic_store_n(&door->end, 0, __ATOMIC_RELEASE);
}

/* Other threads that were inside do not exist in a forked child. */
static void forget_other_threads(void) {
    for (uint32_t i = 0; i < num_doors; i++) doors[i].num_inside = num_own;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, forget_other_threads);
}

static door_t *unused_door(void) {
    for (uint32_t i = 0; i < DAF_MAX_DOORS; i++)
        if (doors[i].end == 0) return &doors[i];
    return NULL;
}

daf_status_t daf_door_open(daf_arena_t *arena) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    daf_door_close();
    door_t *door = unused_door();
    if (door == NULL) return DAF_INVALID;
    door->arena = arena;
    door->num_blocks = 1;
    uintptr_t end;
    daf_arena_range(arena, &door->begin, &end);
    __atomic_store_n(&door->end, end, __ATOMIC_RELEASE);
    uint32_t index = (uint32_t)(door - doors);
    if (index >= num_doors) __atomic_store_n(&num_doors, index + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&in_service, door, __ATOMIC_RELEASE);
    return DAF_OK;
}

void daf_door_close(void) {
    door_t *door = __atomic_exchange_n(&in_service, NULL, __ATOMIC_SEQ_CST);
    if (door == NULL) return;
    while (__atomic_load_n(&door->num_inside, __ATOMIC_SEQ_CST) > num_own) sched_yield();
    leave(door);
}

void daf_door_retire(const daf_arena_t *arena) {
    if (daf_door_arena() == arena) daf_door_close();
}

int daf_door_is_open(void) {
    return daf_door_arena() != NULL;
}

daf_arena_t *daf_door_arena(void) {
    door_t *door = __atomic_load_n(&in_service, __ATOMIC_ACQUIRE);
    return door == NULL ? NULL : door->arena;
}

static void *alloc_inside(door_t *door, size_t num_bytes) {
    void *block;
    uint64_t block_bytes;
    __atomic_fetch_add(&door->num_blocks, 1, __ATOMIC_RELAXED); /* first: the door may be closed meanwhile */
    daf_status_t status = dafi_arena_take(door->arena, num_bytes, &block, &block_bytes);
    if (status != DAF_OK) {
        if (status == DAF_OUT_OF_MEMORY) __atomic_fetch_add(&meter.num_ooms, 1, __ATOMIC_RELAXED);
        leave(door);
        return NULL;
    }
    dafi_meter_up(&meter, block_bytes, block_bytes);
    dafi_trace(DAF_TRACE_ALLOCATE, block, num_bytes, NULL);
    if (dafi_profiles()) dafi_profile_taken(block, num_bytes);
    return block;
}

void *daf_door_alloc(size_t num_bytes) {
    door_t *door = __atomic_load_n(&in_service, __ATOMIC_ACQUIRE);
    if (door == NULL) return NULL;
    num_own++;
    __atomic_fetch_add(&door->num_inside, 1, __ATOMIC_SEQ_CST);
    int is_open = __atomic_load_n(&in_service, __ATOMIC_SEQ_CST) == door; /* else close() may have looked already */
    void *block = is_open ? alloc_inside(door, num_bytes) : NULL;
    __atomic_fetch_sub(&door->num_inside, 1, __ATOMIC_RELEASE);
    num_own--;
    return block;
}

int daf_door_owns(const void *block) {
    return door_of(block) != NULL;
}

void daf_door_free(void *block) {
    door_t *door = door_of(block);
    daf_arena_t *arena = door->arena;
    uint64_t block_bytes;
    dafi_trace(DAF_TRACE_FREE, block, 0, NULL); /* before anyone else can get the block */
    if (dafi_profiles()) dafi_profile_given(block);
    leave(door);
    dafi_arena_give(arena, block, &block_bytes);
    dafi_meter_down(&meter, block_bytes, block_bytes);
}

void daf_door_explain(size_t num_bytes, char *text, size_t text_bytes) {
    daf_arena_t *arena = daf_door_arena();
    if (arena != NULL)
        daf_arena_explain(arena, num_bytes, text, text_bytes);
    else
        snprintf(text, text_bytes, "DAF: no arena is in service for a request of %zu bytes", num_bytes);
}

void daf_door_meter(daf_meter_t *copy) {
    memcpy(copy, &meter, sizeof(*copy));
}

void daf_door_reset_peaks(void) {
    dafi_meter_reset_peaks(&meter);
}
