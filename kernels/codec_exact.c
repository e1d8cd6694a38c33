/* Exact codecs. Everything is in stream 0, which is never dropped.
 *
 * raw   the bytes
 * bool  one plane: is the byte non-zero
 * int   blocks of 4096 elements: base = the block's least element, 8 bytes; planes of element - base, most significant
 *       first. Plane p of block k lies at (p * num_blocks + k) * 512, the bases behind all planes
 */
#include "codec.h"
#include "numbers.h"

#define BLOCK 4096u
#define BLOCK_BYTES (BLOCK / 8)

static daf_status raw_plan(daf_coder_t *coder) {
    coder->num_streams = 1;
    coder->stream_bytes[0] = dafi_whole_units(coder->numel * dafi_itemsize(coder->dtype));
    return DAF_OK;
}

/* Copies page by page; to_planes says which way. */
static void copy_raw(const daf_coder_t *coder, uint8_t *dense, const daf_planes_t *planes, bool to_planes) {
    uint64_t left = coder->numel * dafi_itemsize(coder->dtype);
    for (uint64_t offset = 0; left;) {
        uint64_t part = left < planes->page_bytes ? left : planes->page_bytes;
        uint8_t *page = dafi_at(planes, 0, offset);
        if (to_planes)
            memcpy(page, dense + offset, part);
        else
            memcpy(dense + offset, page, part);
        offset += part;
        left -= part;
    }
}

static void clear_after(const daf_planes_t *planes, uint64_t used) {
    if (used % DAF_UNIT_BYTES) memset(dafi_at(planes, 0, used), 0, DAF_UNIT_BYTES - used % DAF_UNIT_BYTES);
}

static daf_status raw_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    copy_raw(coder, (uint8_t *)src, planes, true);
    clear_after(planes, coder->numel * dafi_itemsize(coder->dtype));
    return DAF_OK;
}

static daf_status raw_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    copy_raw(coder, dst, planes, false);
    return DAF_OK;
}

static daf_status bool_plan(daf_coder_t *coder) {
    if (dafi_itemsize(coder->dtype) != 1) return DAF_BAD_SPEC;
    coder->num_streams = 1;
    coder->num_groups = dafi_div_up(coder->numel, DAF_GROUP);
    coder->stream_bytes[0] = coder->num_groups * DAF_UNIT_BYTES;
    return DAF_OK;
}

static uint32_t num_in_unit(const daf_coder_t *coder, uint64_t unit) {
    uint64_t left = coder->numel - unit * DAF_GROUP;
    return left < DAF_GROUP ? (uint32_t)left : DAF_GROUP;
}

static daf_status bool_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    for (uint64_t unit = 0; unit < coder->num_groups; unit++) {
        uint64_t words[4] = {0};
        const uint8_t *x = (const uint8_t *)src + unit * DAF_GROUP;
        for (uint32_t j = 0, num = num_in_unit(coder, unit); j < num; j++)
            words[j / 64] |= (uint64_t)(x[j] != 0) << (j % 64);
        memcpy(dafi_at(planes, 0, unit * DAF_UNIT_BYTES), words, sizeof words);
    }
    return DAF_OK;
}

static daf_status bool_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    for (uint64_t unit = 0; unit < coder->num_groups; unit++) {
        uint64_t words[4];
        uint8_t *x = (uint8_t *)dst + unit * DAF_GROUP;
        memcpy(words, dafi_at(planes, 0, unit * DAF_UNIT_BYTES), sizeof words);
        for (uint32_t j = 0, num = num_in_unit(coder, unit); j < num; j++) x[j] = (uint8_t)dafi_bit(words, j);
    }
    return DAF_OK;
}

/* Integers. */

/* Sources and destinations may have any alignment. */
#define LOAD(type)                                                                                                     \
    {                                                                                                                  \
        type value;                                                                                                    \
        memcpy(&value, (const uint8_t *)src + index * sizeof value, sizeof value);                                     \
        return value;                                                                                                  \
    }
#define STORE(type)                                                                                                    \
    {                                                                                                                  \
        type narrow = (type)value;                                                                                     \
        memcpy((uint8_t *)dst + index * sizeof narrow, &narrow, sizeof narrow);                                        \
        break;                                                                                                         \
    }

static int64_t load_int(uint32_t dtype, const void *src, uint64_t index) {
    switch (dtype) {
    case DAF_INT64:
        LOAD(int64_t)
    case DAF_INT32:
        LOAD(int32_t)
    case DAF_INT16:
        LOAD(int16_t)
    case DAF_INT8:
        LOAD(int8_t)
    default:
        LOAD(uint8_t)
    }
}

static void store_int(uint32_t dtype, void *dst, uint64_t index, int64_t value) {
    switch (dtype) {
    case DAF_INT64:
        STORE(int64_t)
    case DAF_INT32:
        STORE(int32_t)
    case DAF_INT16:
        STORE(int16_t)
    case DAF_INT8:
        STORE(int8_t)
    default:
        STORE(uint8_t)
    }
}

static bool is_int(uint32_t dtype) {
    return dtype >= DAF_INT64 && dtype <= DAF_BOOL;
}

static uint32_t num_in_block(uint64_t numel, uint64_t block) {
    uint64_t left = numel - block * BLOCK;
    return left < BLOCK ? (uint32_t)left : BLOCK;
}

/* The block's least element, and the planes that its elements need above it. */
static uint32_t block_range(uint32_t dtype, const void *src, uint64_t block, uint32_t num, int64_t *base) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (uint32_t j = 0; j < num; j++) {
        int64_t value = load_int(dtype, src, block * BLOCK + j);
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    uint64_t span = (uint64_t)high - (uint64_t)low;
    *base = low;
    return span ? 64u - (uint32_t)__builtin_clzll(span) : 0;
}

daf_status daf_choose_bits(uint32_t dtype, uint64_t numel, const void *src, uint32_t *bits) {
    if (!is_int(dtype)) return DAF_BAD_SPEC;
    *bits = 1;
    for (uint64_t block = 0; block < dafi_div_up(numel, BLOCK); block++) {
        int64_t base;
        uint32_t needed = block_range(dtype, src, block, num_in_block(numel, block), &base);
        *bits = needed > *bits ? needed : *bits;
    }
    return DAF_OK;
}

static daf_status int_plan(daf_coder_t *coder) {
    if (!is_int(coder->dtype)) return DAF_BAD_SPEC;
    coder->num_streams = 1;
    coder->num_groups = dafi_div_up(coder->numel, BLOCK);
    coder->head_bytes[0] = 8;
    coder->head_offset[0] = coder->bits * coder->num_groups * BLOCK_BYTES;
    coder->stream_bytes[0] = coder->head_offset[0] + dafi_whole_units(coder->num_groups * 8);
    return DAF_OK;
}

static uint8_t *int_plane(const daf_coder_t *coder, const daf_planes_t *planes, uint32_t plane, uint64_t block) {
    return dafi_at(planes, 0, (plane * coder->num_groups + block) * BLOCK_BYTES);
}

static daf_status int_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    for (uint64_t block = 0; block < coder->num_groups; block++) {
        int64_t base;
        uint32_t num = num_in_block(coder->numel, block);
        if (block_range(coder->dtype, src, block, num, &base) > coder->bits) return DAF_OUT_OF_RANGE;
        memcpy(dafi_at(planes, 0, coder->head_offset[0] + block * 8), &base, 8);
        for (uint32_t p = 0; p < coder->bits; p++) {
            uint64_t words[BLOCK / 64] = {0};
            for (uint32_t j = 0; j < num; j++) {
                uint64_t code = (uint64_t)load_int(coder->dtype, src, block * BLOCK + j) - (uint64_t)base;
                words[j / 64] |= ((code >> (coder->bits - 1 - p)) & 1u) << (j % 64);
            }
            memcpy(int_plane(coder, planes, p, block), words, sizeof words);
        }
    }
    clear_after(planes, coder->head_offset[0] + coder->num_groups * 8);
    return DAF_OK;
}

static daf_status int_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    for (uint64_t block = 0; block < coder->num_groups; block++) {
        uint64_t base, words[BLOCK / 64], code[BLOCK] = {0};
        uint32_t num = num_in_block(coder->numel, block);
        memcpy(&base, dafi_at(planes, 0, coder->head_offset[0] + block * 8), 8);
        for (uint32_t p = 0; p < coder->bits; p++) {
            memcpy(words, int_plane(coder, planes, p, block), sizeof words);
            for (uint32_t j = 0; j < num; j++) code[j] = 2 * code[j] + dafi_bit(words, j);
        }
        for (uint32_t j = 0; j < num; j++) store_int(coder->dtype, dst, block * BLOCK + j, (int64_t)(base + code[j]));
    }
    return DAF_OK;
}

const dafi_codec_t dafi_codec_raw = {"raw", 0, 64, raw_plan, raw_encode, raw_decode, NULL, NULL};
const dafi_codec_t dafi_codec_bool = {"bool", 1, 1, bool_plan, bool_encode, bool_decode, NULL, NULL};
const dafi_codec_t dafi_codec_int = {"int", 1, 64, int_plan, int_encode, int_decode, NULL, NULL};
