/* Attention's forward, once more: what backward needs of it is not stored (quant/recompute/attention.py).
 *
 * Words
 *   item      one head of one sample, and up to DAFI_QUERY_ROWS of its queries: what a thread works on at a time
 *   key block as many keys as a thread's workspace holds, packed; longer rows go through their blocks one by one
 *   state     of a row so far: the largest score, and the sum of exp(score - largest)
 */
#ifndef DAF_ATTENTION_H
#define DAF_ATTENTION_H
#include <stdint.h>

/* cdef begin: cffi reads from here */
/* Strides in elements, of sample, head and row; elements of a row are neighbours. */
typedef struct daf_heads {
    const float *data;
    int64_t stride[3];
} daf_heads_t;

/* q [samples, heads, queries, width], k and v [samples, heads, keys, width], mask [samples, heads, queries, keys] or
 * NULL: added to the scores. Causal: query i sees keys 0..i. */
typedef struct daf_attention {
    daf_heads_t q, k, v, mask;
    int64_t samples, heads, queries, keys, width;
    float scale; /* above 0 */
    int is_causal;
} daf_attention_t;

#define DAF_MAX_HEAD_WIDTH 256

/* out [samples, heads, queries, width] = softmax(q k^T * scale + mask) v, and lse [samples, queries, heads], dense, the
 * logarithm of softmax's denominator. Both are 0 in rows that see no key. `width` at most DAF_MAX_HEAD_WIDTH; every
 * size at least 1. Threads: torch's. */
void daf_attend(const daf_attention_t *attention, float *out, const int64_t *out_stride, float *lse);
/* cdef end */

#define DAFI_QUERY_ROWS 256

typedef struct dafi_attention_job {
    const daf_attention_t *given;
    float *out, *lse;
    const int64_t *out_stride;
} dafi_attention_job_t;

/* Where an item lies. */
typedef struct dafi_attention_item {
    const float *q, *k, *v, *mask;
    float *out, *lse;
    int64_t first, num; /* queries; q, mask, out and lse are of query 0 */
} dafi_attention_item_t;

/* The plain definition; other instruction sets differ from it by rounding. */
void dafi_attend_reference(const dafi_attention_job_t *job, const dafi_attention_item_t *item);
#endif
