/* Dual precision: block averages in bf16, and what is left of each element by mean-split in run groups.
 *
 * A tensor is a sequence of maps of `rows` rows and `cols` columns. A block is 8 x 8 elements of one map, smaller at
 * its edges; with group shape column it is 8 rows of one column, for tokens x channels.
 *
 * Stream 0:  | means of the rest's groups, as meansplit | averages, bf16, map by map, row of blocks by row of blocks |
 * Streams 1..bits as meansplit.
 */
#include "numbers.h"
#include "span.h"
#include "threads.h"

#define SIDE 8
#define SPAN_ELEMENTS (DAFI_SPAN_GROUPS * DAF_GROUP)

/* The blocks of a tensor, and the coder of the rest. */
typedef struct blocks {
    daf_coder_t rest;
    uint64_t rows, cols, width; /* of a map; columns of a block */
    uint64_t bands, across;     /* rows of blocks in a map, blocks in such a row */
    uint64_t offset;            /* of the averages in stream 0 */
} blocks_t;

static daf_status blocks_of(const daf_coder_t *coder, blocks_t *b) {
    if (coder->cols == 0 || coder->numel % coder->cols) return DAF_BAD_SPEC;
    uint64_t all_rows = coder->numel / coder->cols;
    b->rows = coder->rows ? coder->rows : all_rows ? all_rows : 1;
    if (all_rows % b->rows) return DAF_BAD_SPEC;
    b->cols = coder->cols;
    b->width = coder->shape == DAF_COLUMN ? 1 : SIDE;
    b->bands = dafi_div_up(b->rows, SIDE), b->across = dafi_div_up(b->cols, b->width);
    b->rest = *coder;
    b->rest.shape = DAF_RUN, b->rest.dtype = DAF_FLOAT32;
    b->rest.codec = dafi_codec_index(&dafi_codec_meansplit);
    daf_status status = dafi_grouped_plan(&b->rest);
    b->offset = b->rest.stream_bytes[0];
    return status;
}

static uint64_t num_bands(const daf_coder_t *coder, const blocks_t *b) {
    return coder->numel / (b->rows * b->cols) * b->bands;
}

static daf_status plan(daf_coder_t *coder) {
    blocks_t b;
    if (coder->dtype > DAF_FLOAT16) return DAF_BAD_SPEC;
    daf_status status = blocks_of(coder, &b);
    if (status != DAF_OK) return status;
    coder->num_streams = b.rest.num_streams, coder->num_groups = b.rest.num_groups;
    memcpy(coder->head_bytes, b.rest.head_bytes, sizeof coder->head_bytes);
    memcpy(coder->head_offset, b.rest.head_offset, sizeof coder->head_offset);
    memcpy(coder->stream_bytes, b.rest.stream_bytes, sizeof coder->stream_bytes);
    coder->stream_bytes[0] += dafi_whole_units(2 * num_bands(coder, &b) * b.across);
    return DAF_OK;
}

/* The average of the regular elements of block (band, column) in row order; bands count through all maps. */
static uint16_t average(const daf_coder_t *coder, const blocks_t *b, const void *src, uint64_t band, uint64_t column) {
    uint64_t top = band % b->bands * SIDE, left = column * b->width, first_row = band / b->bands * b->rows;
    uint64_t bottom = top + SIDE < b->rows ? top + SIDE : b->rows;
    uint64_t right = left + b->width < b->cols ? left + b->width : b->cols;
    float sum = 0.0f;
    uint32_t count = 0;
    for (uint64_t r = top; r < bottom; r++) {
        for (uint64_t c = left; c < right; c++) {
            float x = dafi_load(coder->dtype, src, (first_row + r) * b->cols + c);
            if (!dafi_is_regular(x)) continue;
            sum += x;
            count++;
        }
    }
    return dafi_to_bf16(sum / (float)(count ? count : 1));
}

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const blocks_t *blocks;
    const uint8_t *src;
    uint8_t *dst;
    uint64_t seed;
} task_t;

static uint8_t *average_at(const task_t *task, uint64_t band, uint64_t column) {
    return dafi_at(task->planes, 0, task->blocks->offset + 2 * (band * task->blocks->across + column));
}

static void average_bands(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    for (uint64_t band = (uint64_t)first; band < (uint64_t)last; band++) {
        for (uint64_t column = 0; column < task->blocks->across; column++) {
            uint16_t value = average(task->coder, task->blocks, task->src, band, column);
            memcpy(average_at(task, band, column), &value, 2);
        }
    }
}

/* The averages of elements first .. first + num, one each. */
static void expand(const task_t *task, uint64_t first, uint64_t num, float *out) {
    const blocks_t *b = task->blocks;
    for (uint64_t i = 0; i < num;) {
        uint64_t row = (first + i) / b->cols, col = (first + i) % b->cols;
        uint64_t band = row / b->rows * b->bands + row % b->rows / SIDE;
        for (; i < num && col < b->cols; col++, i++) {
            uint16_t value;
            memcpy(&value, average_at(task, band, col / b->width), 2);
            out[i] = dafi_from_bf16(value);
        }
    }
}

static void encode_spans(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    float rest[SPAN_ELEMENTS] __attribute__((aligned(64)));
    for (uint64_t k = (uint64_t)first; k < (uint64_t)last; k++) {
        dafi_span_t span = dafi_span_of(&task->blocks->rest, k, task->coder->bits, task->seed);
        expand(task, k * SPAN_ELEMENTS, span.numel, rest);
        for (uint64_t i = 0; i < span.numel; i++)
            rest[i] = dafi_load(task->coder->dtype, task->src, k * SPAN_ELEMENTS + i) - rest[i];
        span.src = (const uint8_t *)rest;
        dafi_span_encode(&task->blocks->rest, task->planes, &span);
    }
}

static void decode_spans(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    float rest[SPAN_ELEMENTS] __attribute__((aligned(64))), averages[SPAN_ELEMENTS];
    for (uint64_t k = (uint64_t)first; k < (uint64_t)last; k++) {
        dafi_span_t span = dafi_span_of(&task->blocks->rest, k, task->planes->num_streams - 1, 0);
        span.dst = (uint8_t *)rest;
        dafi_span_decode(&task->blocks->rest, task->planes, &span);
        expand(task, k * SPAN_ELEMENTS, span.numel, averages);
        for (uint64_t i = 0; i < span.numel; i++)
            dafi_store(task->coder->dtype, task->dst, k * SPAN_ELEMENTS + i, averages[i] + rest[i]);
    }
}

static int64_t num_spans(const daf_coder_t *coder) {
    return (int64_t)dafi_div_up(coder->numel, SPAN_ELEMENTS);
}

static daf_status encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    blocks_t b;
    daf_status status = blocks_of(coder, &b);
    if (status != DAF_OK) return status;
    task_t task = {coder, planes, &b, src, NULL, seed};
    uint64_t used = b.offset + 2 * num_bands(coder, &b) * b.across;
    if (used % DAF_UNIT_BYTES) memset(dafi_at(planes, 0, used), 0, DAF_UNIT_BYTES - used % DAF_UNIT_BYTES);
    dafi_clear_tails(&b.rest, planes);
    dafi_parallel_for((int64_t)num_bands(coder, &b), (int64_t)dafi_div_up(DAFI_GRAIN_ELEMENTS, SIDE * b.cols),
                      average_bands, &task);
    dafi_parallel_for(num_spans(coder), DAFI_GRAIN_ELEMENTS / SPAN_ELEMENTS, encode_spans, &task);
    return DAF_OK;
}

static daf_status decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    blocks_t b;
    daf_status status = blocks_of(coder, &b);
    task_t task = {coder, planes, &b, NULL, dst, 0};
    if (status == DAF_OK) dafi_parallel_for(num_spans(coder), DAFI_GRAIN_ELEMENTS / SPAN_ELEMENTS, decode_spans, &task);
    return status;
}

/* A group of the rest, for its error: the averages come from the source, not from planes. */
static void gather(const daf_coder_t *coder, const void *src, uint64_t group, float *x, uint32_t *num) {
    blocks_t b;
    if (blocks_of(coder, &b) != DAF_OK) return;
    uint64_t first = group * DAF_GROUP, left = coder->numel - first;
    *num = left < DAF_GROUP ? (uint32_t)left : DAF_GROUP;
    for (uint32_t j = 0; j < *num; j++) {
        uint64_t row = (first + j) / b.cols, col = (first + j) % b.cols;
        uint64_t band = row / b.rows * b.bands + row % b.rows / SIDE;
        x[j] = dafi_load(coder->dtype, src, first + j) - dafi_from_bf16(average(coder, &b, src, band, col / b.width));
    }
}

const dafi_codec_t dafi_codec_dual = {"dual", 1, 4, plan, encode, decode, &dafi_meansplit_groups, gather};
