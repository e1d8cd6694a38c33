/* How the front doors count: three atomic additions a block, no lock. */
#ifndef DAFI_METER_H
#define DAFI_METER_H

#include "stats/meter.h"

static inline uint64_t dafi_current(const daf_count_t *count) {
    return __atomic_load_n(&count->allocated, __ATOMIC_RELAXED) - __atomic_load_n(&count->freed, __ATOMIC_RELAXED);
}

static inline void dafi_raise(uint64_t *peak, uint64_t current) {
    uint64_t seen = __atomic_load_n(peak, __ATOMIC_RELAXED);
    while ((int64_t)(current - seen) > 0 &&
           !__atomic_compare_exchange_n(peak, &seen, current, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static inline void dafi_count_up(daf_count_t pools[2], int pool, uint64_t amount, uint64_t *peak) {
    __atomic_fetch_add(&pools[pool].allocated, amount, __ATOMIC_RELAXED);
    uint64_t current = dafi_current(&pools[pool]);
    dafi_raise(&pools[pool].peak, current);
    dafi_raise(peak, current + dafi_current(&pools[!pool]));
}

static inline void dafi_meter_up(daf_meter_t *meter, uint64_t block_bytes, uint64_t requested_bytes) {
    int pool = block_bytes >= DAF_SMALL_POOL_BYTES;
    dafi_count_up(meter->blocks, pool, 1, &meter->peak_blocks);
    dafi_count_up(meter->bytes, pool, block_bytes, &meter->peak_bytes);
    dafi_count_up(meter->requested_bytes, pool, requested_bytes, &meter->peak_requested_bytes);
}

static inline void dafi_meter_down(daf_meter_t *meter, uint64_t block_bytes, uint64_t requested_bytes) {
    int pool = block_bytes >= DAF_SMALL_POOL_BYTES;
    __atomic_fetch_add(&meter->blocks[pool].freed, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&meter->bytes[pool].freed, block_bytes, __ATOMIC_RELAXED);
    __atomic_fetch_add(&meter->requested_bytes[pool].freed, requested_bytes, __ATOMIC_RELAXED);
}

/* The peaks start anew from what is in use now. */
void dafi_meter_reset_peaks(daf_meter_t *meter);

#endif
