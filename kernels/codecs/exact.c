/* Exact codecs. Everything is in stream 0, which is never dropped.
 *
 * raw   the bytes
 * bool  one plane: is the byte non-zero
 * int   blocks of 4096 elements: base = the block's least element, 8 bytes; planes of element - base, most significant
 *       first. Plane p of block k lies at (p * num_blocks + k) * 512, the bases behind all planes
 */
#include <stdatomic.h>
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

#define BLOCK_BYTES (DAFI_BLOCK / 8)
#define GRAIN_BYTES ((int64_t)128 << 10) /* of a raw copy */

/* All that the work over pages, units or blocks needs to know. */
typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const uint8_t *src;
    uint8_t *dst;
    const dafi_exact_t *exact;
    atomic_uint bits; /* the planes that the widest block needs */
} task_t;

static void clear_after(const daf_planes_t *planes, uint64_t used) {
    if (used % DAF_UNIT_BYTES) memset(dafi_at(planes, 0, used), 0, DAF_UNIT_BYTES - used % DAF_UNIT_BYTES);
}

/* --- raw --- */

static uint64_t raw_bytes(const daf_coder_t *coder) {
    return coder->numel * dafi_itemsize(coder->dtype);
}

static daf_status_t raw_plan(daf_coder_t *coder) {
    coder->num_streams = 1;
    coder->stream_bytes[0] = dafi_whole_units(raw_bytes(coder));
    return DAF_OK;
}

/* Copies pages first .. last, to the planes where there is a source. */
static void copy_pages(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    uint64_t page_bytes = task->planes->page_bytes, size = raw_bytes(task->coder);
    for (uint64_t at = (uint64_t)first * page_bytes; at < size && at < (uint64_t)last * page_bytes; at += page_bytes) {
        uint8_t *page = dafi_at(task->planes, 0, at);
        uint64_t part = size - at < page_bytes ? size - at : page_bytes;
        if (task->src)
            memcpy(page, task->src + at, part);
        else
            memcpy(task->dst + at, page, part);
    }
}

static void copy_raw(task_t *task) {
    int64_t page_bytes = task->planes->page_bytes;
    dafi_parallel_for((int64_t)dafi_div_up(raw_bytes(task->coder), (uint64_t)page_bytes),
                      (GRAIN_BYTES + page_bytes - 1) / page_bytes, copy_pages, task);
}

static daf_status_t raw_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    task_t task = {.coder = coder, .planes = planes, .src = src};
    copy_raw(&task);
    clear_after(planes, raw_bytes(coder));
    return DAF_OK;
}

static daf_status_t raw_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    task_t task = {.coder = coder, .planes = planes, .dst = dst};
    copy_raw(&task);
    return DAF_OK;
}

/* --- bool --- */

static daf_status_t bool_plan(daf_coder_t *coder) {
    if (dafi_itemsize(coder->dtype) != 1) return DAF_BAD_SPEC;
    coder->num_streams = 1;
    coder->num_groups = dafi_div_up(coder->numel, DAF_GROUP);
    coder->stream_bytes[0] = coder->num_groups * DAF_UNIT_BYTES;
    return DAF_OK;
}

/* Words of a unit from flags; a word that the tensor does not fill goes through a copy. */
static void encode_units(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    for (uint64_t unit = (uint64_t)first; unit < (uint64_t)last; unit++) {
        uint64_t words[4] = {0};
        for (uint32_t w = 0; w < 4; w++) {
            uint64_t at = unit * DAF_GROUP + 64 * w, left = task->coder->numel - at;
            uint8_t tail[64] = {0};
            if (at >= task->coder->numel) break;
            if (left < 64) memcpy(tail, task->src + at, left);
            words[w] = task->exact->take_flags(left < 64 ? tail : task->src + at);
        }
        memcpy(dafi_at(task->planes, 0, unit * DAF_UNIT_BYTES), words, sizeof words);
    }
}

static void decode_units(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    for (uint64_t unit = (uint64_t)first; unit < (uint64_t)last; unit++) {
        uint64_t words[4];
        memcpy(words, dafi_at(task->planes, 0, unit * DAF_UNIT_BYTES), sizeof words);
        for (uint32_t w = 0; w < 4; w++) {
            uint64_t at = unit * DAF_GROUP + 64 * w, left = task->coder->numel - at;
            uint8_t tail[64];
            if (at >= task->coder->numel) break;
            task->exact->give_flags(words[w], left < 64 ? tail : task->dst + at);
            if (left < 64) memcpy(task->dst + at, tail, left);
        }
    }
}

static daf_status_t bool_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    task_t task = {.coder = coder, .planes = planes, .src = src, .exact = dafi_isa_now()->exact};
    dafi_parallel_for((int64_t)coder->num_groups, DAFI_GRAIN_ELEMENTS / DAF_GROUP, encode_units, &task);
    return DAF_OK;
}

static daf_status_t bool_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    task_t task = {.coder = coder, .planes = planes, .dst = dst, .exact = dafi_isa_now()->exact};
    dafi_parallel_for((int64_t)coder->num_groups, DAFI_GRAIN_ELEMENTS / DAF_GROUP, decode_units, &task);
    return DAF_OK;
}

/* --- int --- */

static bool is_int(uint32_t dtype) {
    return dtype >= DAF_INT64 && dtype <= DAF_BOOL;
}

static uint32_t num_in_block(uint64_t numel, uint64_t block) {
    uint64_t left = numel - block * DAFI_BLOCK;
    return left < DAFI_BLOCK ? (uint32_t)left : DAFI_BLOCK;
}

static const uint8_t *block_at(const task_t *task, uint64_t block) {
    return task->src + block * DAFI_BLOCK * dafi_itemsize(task->coder->dtype);
}

static void widen_to(atomic_uint *bits, uint32_t needed) {
    unsigned known = atomic_load(bits);
    while (needed > known && !atomic_compare_exchange_weak(bits, &known, needed)) {
    }
}

/* The base of a block: its least element. Notes the planes that its elements need above it. */
static uint64_t measure_block(task_t *task, uint64_t block) {
    int64_t low, high;
    uint32_t num = num_in_block(task->coder->numel, block);
    task->exact->range(task->coder->dtype, block_at(task, block), num, &low, &high);
    uint64_t span = (uint64_t)high - (uint64_t)low;
    widen_to(&task->bits, span ? 64u - (uint32_t)__builtin_clzll(span) : 0);
    return (uint64_t)low;
}

static void measure_blocks(void *context, int64_t first, int64_t last) {
    for (int64_t block = first; block < last; block++) measure_block(context, (uint64_t)block);
}

daf_status_t daf_choose_bits(uint32_t dtype, uint64_t numel, const void *src, uint32_t *bits) {
    if (!is_int(dtype)) return DAF_BAD_SPEC;
    daf_coder_t coder = {.dtype = dtype, .numel = numel};
    task_t task = {.coder = &coder, .src = src, .exact = dafi_isa_now()->exact};
    atomic_init(&task.bits, 1);
    dafi_parallel_for((int64_t)dafi_div_up(numel, DAFI_BLOCK), DAFI_GRAIN_ELEMENTS / DAFI_BLOCK, measure_blocks, &task);
    *bits = atomic_load(&task.bits);
    return DAF_OK;
}

static daf_status_t int_plan(daf_coder_t *coder) {
    if (!is_int(coder->dtype)) return DAF_BAD_SPEC;
    coder->num_streams = 1;
    coder->num_groups = dafi_div_up(coder->numel, DAFI_BLOCK);
    coder->head_bytes[0] = 8;
    coder->head_offset[0] = coder->bits * coder->num_groups * BLOCK_BYTES;
    coder->stream_bytes[0] = coder->head_offset[0] + dafi_whole_units(coder->num_groups * 8);
    return DAF_OK;
}

/* The slice that begins with plane p. */
static void begin_slice(const daf_coder_t *coder, uint32_t p, dafi_slice_t *slice) {
    uint32_t left = coder->bits - p;
    slice->num_planes = left % DAFI_SLICE_PLANES ? left % DAFI_SLICE_PLANES : DAFI_SLICE_PLANES;
    slice->shift = left - slice->num_planes;
}

static uint8_t *plane_at(const task_t *task, uint32_t plane, uint64_t block) {
    return dafi_at(task->planes, 0, (plane * task->coder->num_groups + block) * BLOCK_BYTES);
}

static void encode_blocks(void *context, int64_t first, int64_t last) {
    task_t *task = context;
    const daf_coder_t *coder = task->coder;
    dafi_slice_t slice;
    for (uint64_t block = (uint64_t)first; block < (uint64_t)last; block++) {
        uint64_t base = measure_block(task, block);
        if (atomic_load(&task->bits) > coder->bits) return;
        memcpy(dafi_at(task->planes, 0, coder->head_offset[0] + block * 8), &base, 8);
        for (uint32_t p = 0; p < coder->bits; p += slice.num_planes) {
            uint32_t num = num_in_block(coder->numel, block);
            begin_slice(coder, p, &slice);
            task->exact->take(coder->dtype, block_at(task, block), num, base, &slice);
            for (uint32_t k = 0; k < slice.num_planes; k++)
                memcpy(plane_at(task, p + k, block), slice.words[k], BLOCK_BYTES);
        }
    }
}

static void decode_blocks(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    const daf_coder_t *coder = task->coder;
    dafi_slice_t slice;
    for (uint64_t block = (uint64_t)first; block < (uint64_t)last; block++) {
        uint64_t base;
        uint8_t *dst = task->dst + block * DAFI_BLOCK * dafi_itemsize(coder->dtype);
        memcpy(&base, dafi_at(task->planes, 0, coder->head_offset[0] + block * 8), 8);
        for (uint32_t p = 0; p < coder->bits; p += slice.num_planes) {
            begin_slice(coder, p, &slice);
            for (uint32_t k = 0; k < slice.num_planes; k++)
                memcpy(slice.words[k], plane_at(task, p + k, block), BLOCK_BYTES);
            task->exact->give(coder->dtype, dst, num_in_block(coder->numel, block), p ? NULL : &base, &slice);
        }
    }
}

static daf_status_t int_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    task_t task = {.coder = coder, .planes = planes, .src = src, .exact = dafi_isa_now()->exact};
    clear_after(planes, coder->head_offset[0] + coder->num_groups * 8);
    dafi_parallel_for((int64_t)coder->num_groups, DAFI_GRAIN_ELEMENTS / DAFI_BLOCK, encode_blocks, &task);
    return atomic_load(&task.bits) > coder->bits ? DAF_OUT_OF_RANGE : DAF_OK;
}

static daf_status_t int_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    task_t task = {.coder = coder, .planes = planes, .dst = dst, .exact = dafi_isa_now()->exact};
    dafi_parallel_for((int64_t)coder->num_groups, DAFI_GRAIN_ELEMENTS / DAFI_BLOCK, decode_blocks, &task);
    return DAF_OK;
}

const dafi_codec_t dafi_codec_raw = {"raw", 0, 64, raw_plan, raw_encode, raw_decode, NULL, NULL};
const dafi_codec_t dafi_codec_bool = {"bool", 1, 1, bool_plan, bool_encode, bool_decode, NULL, NULL};
const dafi_codec_t dafi_codec_int = {"int", 1, 64, int_plan, int_encode, int_decode, NULL, NULL};
