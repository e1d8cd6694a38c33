#include "recompute/attention.h"

#include <math.h>
#include <stddef.h>
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

static float dot(const float *a, const float *b, int64_t num) {
    float sum = 0.0f;
    for (int64_t e = 0; e < num; e++) sum += a[e] * b[e];
    return sum;
}

/* One query: its scores are worked out for the largest, and again for their weights, so that none need be kept. */
static void attend_row(const dafi_attention_job_t *job, const dafi_attention_item_t *item, int64_t row) {
    const daf_attention_t *given = job->given;
    int64_t num_keys = given->is_causal && row + 1 < given->keys ? row + 1 : given->keys, width = given->width;
    const float *q = item->q + row * given->q.stride[2], *mask = item->mask;
    float *out = item->out + row * job->out_stride[2], most = -INFINITY, sum = 0.0f;
    if (mask) mask += row * given->mask.stride[2];
    for (int64_t e = 0; e < width; e++) out[e] = 0.0f;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = 0; j < num_keys; j++) {
            float score = dot(q, item->k + j * given->k.stride[2], width) * given->scale + (mask ? mask[j] : 0.0f);
            if (pass == 0) {
                most = score > most ? score : most;
                continue;
            }
            float weight = expf(score - (most == -INFINITY ? 0.0f : most));
            sum += weight;
            for (int64_t e = 0; e < width; e++) out[e] += weight * item->v[j * given->v.stride[2] + e];
        }
    }
    bool is_blind = sum == 0.0f;
    for (int64_t e = 0; e < width; e++) out[e] = is_blind ? 0.0f : out[e] / sum;
    item->lse[row * given->heads] = is_blind ? 0.0f : (most == -INFINITY ? 0.0f : most) + logf(sum);
}

void dafi_attend_reference(const dafi_attention_job_t *job, const dafi_attention_item_t *item) {
    for (int64_t row = item->first; row < item->first + item->num; row++) attend_row(job, item, row);
}

static int64_t blocks_of(const daf_attention_t *given) {
    return (given->queries + DAFI_QUERY_ROWS - 1) / DAFI_QUERY_ROWS;
}

static dafi_attention_item_t item_at(const dafi_attention_job_t *job, int64_t index) {
    const daf_attention_t *given = job->given;
    int64_t block = index % blocks_of(given), head = index / blocks_of(given) % given->heads;
    int64_t sample = index / blocks_of(given) / given->heads, first = block * DAFI_QUERY_ROWS;
    int64_t left = given->queries - first;
#define PLACE(heads) ((heads).data + sample * (heads).stride[0] + head * (heads).stride[1])
    return (dafi_attention_item_t){
        .q = PLACE(given->q),
        .k = PLACE(given->k),
        .v = PLACE(given->v),
        .mask = given->mask.data ? PLACE(given->mask) : NULL,
        .out = job->out + sample * job->out_stride[0] + head * job->out_stride[1],
        .lse = job->lse + sample * given->queries * given->heads + head,
        .first = first,
        .num = left < DAFI_QUERY_ROWS ? left : DAFI_QUERY_ROWS,
    };
#undef PLACE
}

static void attend_items(void *context, int64_t begin, int64_t end) {
    const dafi_attention_job_t *job = context;
    for (int64_t index = begin; index < end; index++) {
        dafi_attention_item_t item = item_at(job, index);
        dafi_isa_now()->attend(job, &item);
    }
}

void daf_attend(const daf_attention_t *attention, float *out, const int64_t *out_stride, float *lse) {
    dafi_attention_job_t job = {attention, out, lse, out_stride};
    int64_t num_items = attention->samples * attention->heads * blocks_of(attention);
    int64_t rows = attention->queries < DAFI_QUERY_ROWS ? attention->queries : DAFI_QUERY_ROWS;
    int64_t work = rows * attention->keys * attention->width;
    dafi_parallel_for(num_items, work < DAFI_GRAIN_ELEMENTS ? DAFI_GRAIN_ELEMENTS / work : 1, attend_items, &job);
}
