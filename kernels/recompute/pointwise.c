#include "recompute/pointwise.h"

#include <math.h>
#include <stddef.h>
#include "threads.h"

#define GRAIN_ELEMENTS 32768 /* as torch: less is not worth waking a thread */

static int64_t grain_of(uint64_t run) {
    return run < GRAIN_ELEMENTS ? (int64_t)(GRAIN_ELEMENTS / run) : 1;
}

typedef struct task {
    const float *y, *shortcut;
    float *x;
    const daf_channels_t *channels;
} task_t;

/* By bits: a choice between floats would stay a branch, since either side might trap. */
static float input_of(float y, float rise, float scale, float offset, float low) {
    union {
        float number;
        uint32_t bits;
    } x = {rise * scale + offset}, lowest = {low};
    uint32_t is_there = -(uint32_t)(y > 0.0f);
    x.bits = (x.bits & is_there) | (lowest.bits & ~is_there);
    return x.number;
}

/* Runs of elements of one channel. */
static void input_runs(void *context, int64_t begin, int64_t end) {
    const task_t *task = context;
    uint64_t inner = task->channels->inner;
    for (int64_t run = begin; run < end; run++) {
        const float *restrict y = task->y + run * inner, *s = task->shortcut ? task->shortcut + run * inner : NULL;
        float *restrict x = task->x + run * inner;
        uint64_t c = (uint64_t)run % task->channels->num;
        float scale = task->channels->scale[c], offset = task->channels->offset[c], low = task->channels->low[c];
        if (s)
            for (uint64_t i = 0; i < inner; i++) x[i] = input_of(y[i], y[i] - s[i], scale, offset, low);
        else
            for (uint64_t i = 0; i < inner; i++) x[i] = input_of(y[i], y[i], scale, offset, low);
    }
}

/* Rows of one element of each channel. */
static void input_rows(void *context, int64_t begin, int64_t end) {
    const task_t *task = context;
    uint64_t num = task->channels->num;
    const float *scale = task->channels->scale, *offset = task->channels->offset, *low = task->channels->low;
    for (int64_t row = begin; row < end; row++) {
        const float *restrict y = task->y + row * num, *s = task->shortcut ? task->shortcut + row * num : NULL;
        float *restrict x = task->x + row * num;
        if (s)
            for (uint64_t c = 0; c < num; c++) x[c] = input_of(y[c], y[c] - s[c], scale[c], offset[c], low[c]);
        else
            for (uint64_t c = 0; c < num; c++) x[c] = input_of(y[c], y[c], scale[c], offset[c], low[c]);
    }
}

void daf_walk_back(const float *y, const float *shortcut, float *x, uint64_t numel, const daf_channels_t *channels) {
    task_t task = {y, shortcut, x, channels};
    uint64_t run = channels->inner == 1 ? channels->num : channels->inner;
    if (run) dafi_parallel_for(numel / run, grain_of(run), channels->inner == 1 ? input_rows : input_runs, &task);
}

typedef struct norm {
    const float *x, *mean, *rstd, *weight, *bias;
    float *y;
    uint64_t cols;
} norm_t;

static void normalize_rows(void *context, int64_t begin, int64_t end) {
    const norm_t *norm = context;
    uint64_t cols = norm->cols;
    const float *weight = norm->weight, *bias = norm->bias;
    for (int64_t row = begin; row < end; row++) {
        const float *restrict x = norm->x + row * cols;
        float *restrict y = norm->y + row * cols;
        float mean = norm->mean[row], rstd = norm->rstd[row];
        if (weight && bias)
            for (uint64_t c = 0; c < cols; c++) y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
        else if (weight)
            for (uint64_t c = 0; c < cols; c++) y[c] = (x[c] - mean) * rstd * weight[c];
        else
            for (uint64_t c = 0; c < cols; c++) y[c] = (x[c] - mean) * rstd + (bias ? bias[c] : 0.0f);
    }
}

void daf_normalize(const float *x, const float *mean, const float *rstd, const float *weight, const float *bias,
                   float *y, uint64_t rows, uint64_t cols) {
    norm_t norm = {x, mean, rstd, weight, bias, y, cols};
    if (cols) dafi_parallel_for(rows, grain_of(cols), normalize_rows, &norm);
}

typedef struct bound {
    float *x;
    const float *mean, *rstd;
    uint64_t cols;
} bound_t;

#define LANES 16 /* sums side by side: one alone would be a chain of additions that wait for each other */

static float energy_of(const float *x, float mean, uint64_t cols) {
    float sums[LANES] = {0}, total = 0.0f;
    uint64_t c = 0;
    for (; c + LANES <= cols; c += LANES)
        for (int i = 0; i < LANES; i++) sums[i] += (x[c + i] - mean) * (x[c + i] - mean);
    for (; c < cols; c++) total += (x[c] - mean) * (x[c] - mean);
    for (int i = 0; i < LANES; i++) total += sums[i];
    return total;
}

static void bound_rows(void *context, int64_t begin, int64_t end) {
    const bound_t *bound = context;
    uint64_t cols = bound->cols;
    for (int64_t row = begin; row < end; row++) {
        float *restrict x = bound->x + row * cols;
        float mean = bound->mean[row], rstd = bound->rstd[row];
        float square = energy_of(x, mean, cols) * rstd * rstd / (float)cols;
        if (!(square > 1.0f)) continue;
        float share = 1.0f / sqrtf(square);
        for (uint64_t c = 0; c < cols; c++) x[c] = mean + (x[c] - mean) * share;
    }
}

void daf_bound_rows(float *x, const float *mean, const float *rstd, uint64_t rows, uint64_t cols) {
    bound_t bound = {x, mean, rstd, cols};
    if (cols) dafi_parallel_for(rows, grain_of(cols), bound_rows, &bound);
}
