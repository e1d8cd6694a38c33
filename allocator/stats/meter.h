/* Counters of a front door in the terms of torch.cuda.memory_stats(): current, peak, allocated, freed.
 *
 *      current = allocated - freed          peak = the highest current since the last reset
 *
 * Blocks under DAF_SMALL_POOL_BYTES count as torch's small pool, the rest as its large one: a label in the statistics,
 * not a place. What both have in common is the sum of the two; only its peak has to be kept as it happens.
 * Threads: counting takes no lock, so a reader may see a block's count before its bytes.
 * This header is read by C and by cffi.
 */
#ifndef DAF_METER_H
#define DAF_METER_H

#include <stdint.h>

#define DAF_SMALL_POOL_BYTES 1048576

typedef struct daf_count {
    uint64_t allocated, freed, peak;
} daf_count_t;

/* [0] the small pool, [1] the large one */
typedef struct daf_meter {
    daf_count_t blocks[2], bytes[2], requested_bytes[2];
    uint64_t peak_blocks, peak_bytes, peak_requested_bytes; /* of both pools together */
    uint64_t num_ooms, num_retries;
} daf_meter_t;

#endif
