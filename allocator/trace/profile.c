#define _GNU_SOURCE
#include "trace/profile_internal.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/core.h"

#define NUM_PLACES 65536u /* of the table of blocks: a power of two */
#define MAX_FILLED (NUM_PLACES / 4 * 3)
/* Shares of the time, in thousandths: above REST nothing but large blocks is looked at until it is below WAKE again. */
#define SHARE_WAKE 10u
#define SHARE_REST 18u
#define SHARE_MAX 23u
#define GRACE_NS UINT64_C(30000000) /* the first step is looked at whole where it is short */
#define LARGE_PART 16u

typedef struct block {
    uint64_t address, num_bytes, stands_for, micros;
    uint32_t stack;
} block_t;

typedef struct books {
    uint64_t num_bytes[DAF_PROFILE_STACKS];
    uint32_t num_blocks[DAF_PROFILE_STACKS];
} books_t;

typedef struct profile {
    daf_look_fn look;
    uint64_t least_bytes, small_bytes, began_ns;
    uint32_t num_entries, num_places_filled, num_stacks;
    bool is_resting, is_peak_due;
    uint64_t num_written; /* entries of the ring so far */
    daf_profile_state_t state;
    books_t now, peak;
    block_t blocks[NUM_PLACES];
    daf_profile_entry_t ring[];
} profile_t;

int dafi_is_profiling;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static profile_t *profile;
static _Thread_local bool is_looking;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
    dafi_is_profiling = 0;
    free(profile);
    profile = NULL;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

daf_status_t daf_profile_open(uint64_t least_bytes, uint32_t num_entries, daf_look_fn look) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    if (least_bytes == 0 || num_entries == 0) return DAF_INVALID;
    profile_t *made = calloc(1, sizeof *made + num_entries * sizeof(daf_profile_entry_t));
    if (made == NULL) return DAF_OUT_OF_MEMORY;
    made->look = look;
    made->least_bytes = least_bytes;
    made->num_entries = num_entries;
    made->num_stacks = 1;
    made->began_ns = clock_ns(CLOCK_MONOTONIC);
    pthread_mutex_lock(&lock);
    bool is_first = profile == NULL;
    if (is_first) {
        profile = made;
        __atomic_store_n(&dafi_is_profiling, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    if (!is_first) free(made);
    return is_first ? DAF_OK : DAF_INVALID;
}

void daf_profile_close(void) {
    pthread_mutex_lock(&lock);
    __atomic_store_n(&dafi_is_profiling, 0, __ATOMIC_RELEASE);
    free(profile);
    profile = NULL;
    pthread_mutex_unlock(&lock);
}

int daf_profile_is_open(void) {
    return dafi_profiles();
}

static uint32_t place_of(uint64_t address) {
    return (uint32_t)((address >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 48) & (NUM_PLACES - 1);
}

/* The place of a block, or the empty place where it would go. */
static uint32_t find(uint64_t address) {
    uint32_t place = place_of(address);
    while (profile->blocks[place].address && profile->blocks[place].address != address)
        place = (place + 1) & (NUM_PLACES - 1);
    return place;
}

/* Later blocks of the same run move up, so that no search ends early at the gap. */
static void empty(uint32_t place) {
    block_t *blocks = profile->blocks;
    for (uint32_t next = (place + 1) & (NUM_PLACES - 1); blocks[next].address; next = (next + 1) & (NUM_PLACES - 1)) {
        uint32_t home = place_of(blocks[next].address);
        if (((next - home) & (NUM_PLACES - 1)) < ((next - place) & (NUM_PLACES - 1))) continue;
        blocks[place] = blocks[next];
        place = next;
    }
    blocks[place].address = 0;
    profile->num_places_filled--;
}

static void write_entry(const block_t *block, uint32_t is_free, uint64_t micros) {
    profile->ring[profile->num_written++ % profile->num_entries] = (daf_profile_entry_t){.address = block->address,
                                                                                         .num_bytes = block->num_bytes,
                                                                                         .micros = micros,
                                                                                         .stack = block->stack,
                                                                                         .is_free = is_free};
}

static void keep_peak(void) {
    if (!profile->is_peak_due) return;
    profile->is_peak_due = false;
    memcpy(profile->peak.num_bytes, profile->now.num_bytes, profile->num_stacks * sizeof(uint64_t));
    memcpy(profile->peak.num_blocks, profile->now.num_blocks, profile->num_stacks * sizeof(uint32_t));
}

static void forget(uint32_t place, uint64_t micros) {
    const block_t *block = &profile->blocks[place];
    if (block->stack) {
        keep_peak();
        profile->now.num_bytes[block->stack] -= block->stands_for;
        profile->now.num_blocks[block->stack]--;
        profile->state.live_bytes -= block->stands_for;
    }
    write_entry(block, 1, micros);
    empty(place);
}

static void follow(const block_t *block) {
    uint32_t place = find(block->address);
    if (profile->blocks[place].address) forget(place, block->micros); /* its free was not seen */
    if (profile->num_places_filled >= MAX_FILLED) {
        profile->state.num_lost++;
        return;
    }
    profile->blocks[find(block->address)] = *block;
    profile->num_places_filled++;
    write_entry(block, 0, block->micros);
    if (block->stack == 0) return;
    profile->num_stacks = (uint32_t)dafi_max(profile->num_stacks, block->stack + 1);
    profile->now.num_bytes[block->stack] += block->stands_for;
    profile->now.num_blocks[block->stack]++;
    profile->state.live_bytes += block->stands_for;
    if (profile->state.live_bytes > profile->state.peak_bytes) {
        profile->state.peak_bytes = profile->state.live_bytes;
        profile->state.peak_micros = block->micros;
        profile->is_peak_due = true;
    }
}

static bool may_look(uint64_t num_bytes, uint64_t now_ns) {
    uint64_t spent = profile->state.looked_ns * 1000, passed = now_ns - profile->began_ns;
    if (spent < GRACE_NS * 1000) return true;
    if (spent > SHARE_REST * passed) profile->is_resting = true;
    if (spent < SHARE_WAKE * passed) profile->is_resting = false;
    return !profile->is_resting || (num_bytes >= profile->state.peak_bytes / LARGE_PART && spent < SHARE_MAX * passed);
}

/* What a block stands for; 0: it is not followed. */
static uint64_t weight_of(uint64_t num_bytes) {
    if (num_bytes >= profile->least_bytes) return num_bytes;
    profile->small_bytes += num_bytes;
    if (profile->small_bytes < profile->least_bytes) return 0;
    uint64_t stands_for = profile->small_bytes;
    profile->small_bytes = 0;
    return stands_for;
}

/* Looks without the lock: whoever holds the interpreter's may be waiting for ours. */
static uint32_t look(daf_look_fn function, uint64_t num_bytes, uint64_t began_ns) {
    is_looking = true;
    uint32_t stack = 0;
    if (dafi_call_begin()) {
        stack = function(num_bytes);
        dafi_call_end();
    }
    is_looking = false;
    uint64_t took_ns = clock_ns(CLOCK_MONOTONIC) - began_ns;
    pthread_mutex_lock(&lock);
    if (profile) {
        profile->state.looked_ns += took_ns;
        profile->state.num_looked++;
    }
    pthread_mutex_unlock(&lock);
    return stack < DAF_PROFILE_STACKS ? stack : 0;
}

void dafi_profile_taken(const void *address, uint64_t num_bytes) {
    if (is_looking) return;
    block_t block = {.address = (uint64_t)(uintptr_t)address, .num_bytes = num_bytes};
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    daf_look_fn function = NULL;
    pthread_mutex_lock(&lock);
    if (profile && (block.stands_for = weight_of(num_bytes)) != 0) {
        profile->state.num_followed++;
        if (may_look(num_bytes, now_ns)) function = profile->look;
    }
    pthread_mutex_unlock(&lock);
    if (block.stands_for == 0) return;
    if (function) block.stack = look(function, num_bytes, now_ns);
    block.micros = clock_ns(CLOCK_REALTIME) / 1000;
    pthread_mutex_lock(&lock);
    if (profile) follow(&block);
    pthread_mutex_unlock(&lock);
}

void dafi_profile_given(const void *address) {
    pthread_mutex_lock(&lock);
    if (profile) {
        uint32_t place = find((uint64_t)(uintptr_t)address);
        if (profile->blocks[place].address) forget(place, clock_ns(CLOCK_REALTIME) / 1000);
    }
    pthread_mutex_unlock(&lock);
}

void daf_profile_tell(daf_profile_state_t *state) {
    *state = (daf_profile_state_t){0};
    pthread_mutex_lock(&lock);
    if (profile) {
        *state = profile->state;
        state->open_ns = clock_ns(CLOCK_MONOTONIC) - profile->began_ns;
    }
    pthread_mutex_unlock(&lock);
}

uint64_t daf_profile_ring(daf_profile_entry_t *entries, uint64_t cap) {
    pthread_mutex_lock(&lock);
    uint64_t count = profile ? dafi_min(profile->num_written, profile->num_entries) : 0;
    for (uint64_t i = 0; i < dafi_min(count, cap); i++)
        entries[i] = profile->ring[(profile->num_written - count + i) % profile->num_entries];
    pthread_mutex_unlock(&lock);
    return count;
}

uint64_t daf_profile_blocks(daf_profile_entry_t *entries, uint64_t cap) {
    uint64_t count = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t place = 0; profile && place < NUM_PLACES; place++) {
        const block_t *block = &profile->blocks[place];
        if (!block->address) continue;
        if (count < cap)
            entries[count] = (daf_profile_entry_t){.address = block->address,
                                                   .num_bytes = block->num_bytes,
                                                   .micros = block->micros,
                                                   .stack = block->stack};
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

uint64_t daf_profile_peak(daf_profile_share_t *shares, uint64_t cap) {
    uint64_t count = 0;
    pthread_mutex_lock(&lock);
    if (profile) keep_peak();
    for (uint32_t stack = 1; profile && stack < profile->num_stacks; stack++) {
        const books_t *peak = &profile->peak;
        if (!peak->num_blocks[stack]) continue;
        if (count < cap)
            shares[count] = (daf_profile_share_t){
                .num_bytes = peak->num_bytes[stack], .stack = stack, .num_blocks = peak->num_blocks[stack]};
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}
