/* What is recomputed from a decoded tensor in one pass: pointwise, with numbers of their own for each channel or row.
 *
 * Plain loops that the compiler turns into vectors: with a read and a write an element, they wait for memory alone.
 */
#ifndef DAF_POINTWISE_H
#define DAF_POINTWISE_H
#include <stdint.h>

/* cdef begin: cffi reads from here */
/* Element i belongs to channel i / inner % num. */
typedef struct daf_channels {
    const float *scale, *offset, *low;
    uint64_t num, inner;
} daf_channels_t;

/* x = (y - shortcut) * scale + offset where y > 0, else low. No shortcut: NULL. */
void daf_walk_back(const float *y, const float *shortcut, float *x, uint64_t numel, const daf_channels_t *channels);

/* y = (x - mean) * rstd * weight + bias: a mean and rstd for each row, weight and bias for each column, or NULL. */
void daf_normalize(const float *x, const float *mean, const float *rstd, const float *weight, const float *bias,
                   float *y, uint64_t rows, uint64_t cols);

/* In place: rows whose mean square of (x - mean) * rstd is above 1 are drawn towards their mean until it is 1. */
void daf_bound_rows(float *x, const float *mean, const float *rstd, uint64_t rows, uint64_t cols);
/* cdef end */
#endif
