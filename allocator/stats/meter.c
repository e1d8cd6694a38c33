#include "stats/meter_internal.h"

static void reset(daf_count_t pools[2], uint64_t *peak) {
    for (int pool = 0; pool < 2; pool++)
        __atomic_store_n(&pools[pool].peak, dafi_current(&pools[pool]), __ATOMIC_RELAXED);
    __atomic_store_n(peak, dafi_current(&pools[0]) + dafi_current(&pools[1]), __ATOMIC_RELAXED);
}

void dafi_meter_reset_peaks(daf_meter_t *meter) {
    reset(meter->blocks, &meter->peak_blocks);
    reset(meter->bytes, &meter->peak_bytes);
    reset(meter->requested_bytes, &meter->peak_requested_bytes);
}
