/* Dual precision: block averages in bf16, and what is left of each element by mean-split in run groups.
 *
 * A tensor is a sequence of maps of `rows` rows and `cols` columns. A block is 8 x 8 elements of one map, smaller at
 * its edges; with group shape column it is 8 rows of one column, for tokens x channels.
 *
 * Stream 0:  | means of the rest's groups, as meansplit | averages, bf16, map by map, row of blocks by row of blocks |
 * Streams 1..bits as meansplit.
 */
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

#define SIDE 8
#define SPAN_ELEMENTS (DAFI_SPAN_GROUPS * DAF_GROUP)
#define CHUNK 2048 /* columns that are averaged at a time */

/* The blocks of a tensor, and the coder of the rest. */
typedef struct blocks {
    daf_coder_t rest;
    uint64_t rows, cols, width; /* of a map; columns of a block */
    uint64_t bands, across;     /* rows of blocks in a map, blocks in such a row */
    uint64_t offset;            /* of the averages in stream 0 */
} blocks_t;

static daf_status_t blocks_of(const daf_coder_t *coder, blocks_t *b) {
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
    daf_status_t status = dafi_grouped_plan(&b->rest);
    b->offset = b->rest.stream_bytes[0];
    return status;
}

static uint64_t num_bands(const daf_coder_t *coder, const blocks_t *b) {
    return coder->numel / (b->rows * b->cols) * b->bands;
}

static daf_status_t plan(daf_coder_t *coder) {
    blocks_t b;
    if (coder->dtype > DAF_FLOAT16) return DAF_BAD_SPEC;
    daf_status_t status = blocks_of(coder, &b);
    if (status != DAF_OK) return status;
    coder->num_streams = b.rest.num_streams, coder->num_groups = b.rest.num_groups;
    memcpy(coder->head_bytes, b.rest.head_bytes, sizeof coder->head_bytes);
    memcpy(coder->head_offset, b.rest.head_offset, sizeof coder->head_offset);
    memcpy(coder->stream_bytes, b.rest.stream_bytes, sizeof coder->stream_bytes);
    coder->stream_bytes[0] += dafi_whole_units(2 * num_bands(coder, &b) * b.across);
    return DAF_OK;
}

/* The averages of blocks first .. first + num of a band, from the source: of their regular elements, summed down each
 * column and then over the columns. Bands count through all maps; num * width is at most CHUNK. */
static void average(const daf_coder_t *coder, const blocks_t *b, const uint8_t *src, uint64_t band, uint64_t first,
                    uint64_t num, uint16_t *halves) {
    float total[CHUNK] = {0};
    uint32_t count[CHUNK] = {0};
    uint64_t top = band % b->bands * SIDE, bottom = top + SIDE < b->rows ? top + SIDE : b->rows;
    uint64_t left = first * b->width, right = left + num * b->width < b->cols ? left + num * b->width : b->cols;
    for (uint64_t r = band / b->bands * b->rows + top; r < band / b->bands * b->rows + bottom; r++) {
        const uint8_t *row = src + (r * b->cols + left) * dafi_itemsize(coder->dtype);
        dafi_isa_now()->add_regular(coder->dtype, row, right - left, total, count);
    }
    for (uint64_t k = 0; k < num; k++) {
        float sum = 0.0f;
        uint32_t elements = 0;
        for (uint64_t c = k * b->width; c < (k + 1) * b->width; c++) sum += total[c], elements += count[c];
        bool has_zero = elements >= DAFI_COUNT_OF_ZERO;
        halves[k] = dafi_to_bf16(has_zero ? 0.0f : sum / (float)(elements ? elements : 1));
    }
}

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const blocks_t *blocks;
    const uint8_t *src;
    uint8_t *dst;
    uint64_t seed;
} task_t;

static uint64_t average_offset(const task_t *task, uint64_t band, uint64_t block) {
    return task->blocks->offset + 2 * (band * task->blocks->across + block);
}

static void average_bands(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    const blocks_t *b = task->blocks;
    uint64_t most = CHUNK / b->width;
    uint16_t halves[CHUNK];
    for (uint64_t band = (uint64_t)first; band < (uint64_t)last; band++) {
        for (uint64_t block = 0; block < b->across; block += most) {
            uint64_t num = b->across - block < most ? b->across - block : most;
            average(task->coder, b, task->src, band, block, num, halves);
            dafi_copy(task->planes, 0, average_offset(task, band, block), halves, 2 * num, true);
        }
    }
}

/* Elements of one row, at most CHUNK - SIDE of them, and the blocks they lie in. */
typedef struct piece {
    uint64_t num, skip; /* elements; columns of the first block before them */
    uint64_t band, block, num_blocks;
} piece_t;

static piece_t piece_at(const blocks_t *b, uint64_t index, uint64_t left) {
    uint64_t row = index / b->cols, col = index % b->cols, num = b->cols - col;
    num = num < left ? num : left;
    num = num < CHUNK - SIDE ? num : CHUNK - SIDE;
    uint64_t block = col / b->width, last = (col + num - 1) / b->width;
    return (piece_t){num, col - block * b->width, row / b->rows * b->bands + row % b->rows / SIDE, block,
                     last - block + 1};
}

/* One average for each element of the blocks. */
static void spread(const uint16_t *halves, uint64_t num, uint64_t width, float *out) {
    for (uint64_t k = 0; k < num; k++) {
        float value = dafi_from_bf16(halves[k]);
        if (width == 1)
            out[k] = value;
        else
            for (uint32_t c = 0; c < SIDE; c++) out[k * SIDE + c] = value;
    }
}

/* The piece that begins at element `index`, and the stored average of each of its elements in averages[skip + j]. */
static piece_t load_piece(const task_t *task, uint64_t index, uint64_t left, float *averages) {
    uint16_t halves[CHUNK];
    piece_t piece = piece_at(task->blocks, index, left);
    dafi_copy(task->planes, 0, average_offset(task, piece.band, piece.block), halves, 2 * piece.num_blocks, false);
    spread(halves, piece.num_blocks, task->blocks->width, averages);
    return piece;
}

static void encode_spans(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    uint32_t dtype = task->coder->dtype;
    float rest[SPAN_ELEMENTS] __attribute__((aligned(64))), averages[CHUNK + SIDE];
    piece_t piece;
    for (uint64_t k = (uint64_t)first; k < (uint64_t)last; k++) {
        dafi_span_t span = dafi_span_of(&task->blocks->rest, k, task->coder->bits, task->seed);
        for (uint64_t i = 0; i < span.numel; i += piece.num) {
            const uint8_t *src = task->src + (k * SPAN_ELEMENTS + i) * dafi_itemsize(dtype);
            piece = load_piece(task, k * SPAN_ELEMENTS + i, span.numel - i, averages);
            dafi_isa_now()->widen(dtype, src, averages + piece.skip, piece.num, rest + i);
        }
        span.src = (const uint8_t *)rest;
        dafi_span_encode(&task->blocks->rest, task->planes, &span);
    }
}

static void decode_spans(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    uint32_t dtype = task->coder->dtype;
    bool is_streaming = dafi_is_streaming(task->coder, task->dst);
    float rest[SPAN_ELEMENTS] __attribute__((aligned(64))), averages[CHUNK + SIDE];
    piece_t piece;
    for (uint64_t k = (uint64_t)first; k < (uint64_t)last; k++) {
        dafi_span_t span = dafi_span_of(&task->blocks->rest, k, task->planes->num_streams - 1, 0);
        span.dst = (uint8_t *)rest;
        dafi_span_decode(&task->blocks->rest, task->planes, &span);
        for (uint64_t i = 0; i < span.numel; i += piece.num) {
            uint8_t *dst = task->dst + (k * SPAN_ELEMENTS + i) * dafi_itemsize(dtype);
            bool is_aligned = (uintptr_t)dst % DAFI_STREAMING_ALIGN == 0;
            piece = load_piece(task, k * SPAN_ELEMENTS + i, span.numel - i, averages);
            dafi_isa_now()->narrow(dtype, rest + i, averages + piece.skip, piece.num, dst, is_streaming && is_aligned);
        }
    }
    if (is_streaming) dafi_stream_fence();
}

static int64_t num_spans(const daf_coder_t *coder) {
    return (int64_t)dafi_div_up(coder->numel, SPAN_ELEMENTS);
}

static daf_status_t encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    blocks_t b;
    daf_status_t status = blocks_of(coder, &b);
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

static daf_status_t decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    blocks_t b;
    daf_status_t status = blocks_of(coder, &b);
    task_t task = {coder, planes, &b, NULL, dst, 0};
    if (status == DAF_OK) dafi_parallel_for(num_spans(coder), DAFI_GRAIN_ELEMENTS / SPAN_ELEMENTS, decode_spans, &task);
    return status;
}

/* A group of the rest, for its error: the averages come from the source, not from planes. */
static void gather(const daf_coder_t *coder, const void *src, uint64_t group, float *x, uint32_t *num) {
    blocks_t b;
    uint16_t halves[CHUNK];
    float averages[CHUNK + SIDE];
    piece_t piece;
    uint64_t first = group * DAF_GROUP, left = coder->numel - first;
    if (blocks_of(coder, &b) != DAF_OK) return;
    *num = left < DAF_GROUP ? (uint32_t)left : DAF_GROUP;
    for (uint64_t i = 0; i < *num; i += piece.num) {
        piece = piece_at(&b, first + i, *num - i);
        average(coder, &b, src, piece.band, piece.block, piece.num_blocks, halves);
        spread(halves, piece.num_blocks, b.width, averages);
        for (uint64_t j = 0; j < piece.num; j++)
            x[i + j] = dafi_load(coder->dtype, src, first + i + j) - averages[piece.skip + j];
    }
}

const dafi_codec_t dafi_codec_dual = {"dual", 1, 4, plan, encode, decode, &dafi_meansplit_groups, gather};
