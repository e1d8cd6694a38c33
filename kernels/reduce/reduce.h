/* Ranges: the least and greatest finite value of a tensor, or of each of its channels.
 *
 *   key        a value as a signed integer of the same order, so that floats, too, compare and swap as integers
 *   cell       one channel's range so far: two keys
 *   block      what one thread reduces without telling anybody: a run of elements, or rows of a matrix
 *   partial    the cell of one block
 *
 * A tensor is [outer, channels, inner] in memory order: NCHW is [N, C, H*W], channels_last or tokens x features is
 * [rows, C, 1], a whole tensor is [1, 1, n]. A minimum is the same in any order, so all strategies give the same bits:
 *
 *   parallel   every block stores its partial; when all are done, a tree folds them. No contention, one more phase
 *   atomic     every block folds its partial into the channel's cell at once. No second phase, all meet in one place
 *   hybrid     a thread folds its blocks privately, then meets the others once
 */
#ifndef DAF_REDUCE_H
#define DAF_REDUCE_H
#include <stdint.h>
#include "planes.h"

/* cdef begin: cffi reads from here */
typedef enum daf_reduce_strategy {
    DAF_REDUCE_PARALLEL = 0,
    DAF_REDUCE_ATOMIC = 1,
    DAF_REDUCE_HYBRID = 2
} daf_reduce_strategy;

/* `real` for float dtypes, `integer` for the others. */
typedef union daf_number {
    double real;
    int64_t integer;
} daf_number_t;

typedef struct daf_range_request {
    const void *values;             /* dense, aligned as its dtype is */
    int64_t outer, channels, inner; /* each at least 1 */
    uint32_t dtype;                 /* daf_dtype: floats, integers, bool */
    uint32_t strategy;              /* daf_reduce_strategy */
} daf_range_request_t;

/* Writes each channel's least and greatest finite value to lo[channels], hi[channels]; NaN and infinities are passed
 * over, and a channel with nothing finite gets lo > hi. Any thread. */
daf_status_t daf_reduce_ranges(const daf_range_request_t *request, daf_number_t *lo, daf_number_t *hi);
/* cdef end */

/* Identity of the fold: the range of nothing. */
#define DAF_EMPTY_LO INT64_MAX
#define DAF_EMPTY_HI INT64_MIN

typedef struct dafi_reduce_kernels {
    /* Folds `count` consecutive values into one cell. */
    void (*run)(const void *values, int64_t count, int64_t *lo, int64_t *hi);
    /* Folds `rows` dense rows of `cols` values into `cols` cells. */
    void (*columns)(const void *values, int64_t rows, int64_t cols, int64_t *lo, int64_t *hi);
    int64_t value_bytes;
    double (*real)(int64_t key); /* the float a key stands for; NULL where keys are the integers themselves */
} dafi_reduce_kernels_t;

/* The block kernels of one dtype for the instruction set in force; NULL for a dtype that has no range. */
const dafi_reduce_kernels_t *dafi_reduce_kernels(uint32_t dtype);

#endif
