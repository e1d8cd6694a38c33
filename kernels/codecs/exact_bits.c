/* The reference of what exact_bits.h asks for, bit by bit. */
#include "codecs/exact_bits.h"
#include "codec.h"
#include "numbers.h"

/* Any alignment. */
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

static void store_int(uint32_t dtype, void *dst, uint64_t index, uint64_t value) {
    switch (dtype) {
    case DAF_INT64:
        STORE(uint64_t)
    case DAF_INT32:
        STORE(uint32_t)
    case DAF_INT16:
        STORE(uint16_t)
    default:
        STORE(uint8_t)
    }
}

static void range(uint32_t dtype, const void *src, uint32_t num, int64_t *low, int64_t *high) {
    *low = INT64_MAX, *high = INT64_MIN;
    for (uint32_t j = 0; j < num; j++) {
        int64_t value = load_int(dtype, src, j);
        *low = value < *low ? value : *low;
        *high = value > *high ? value : *high;
    }
}

static uint32_t bit_of(const dafi_slice_t *slice, uint32_t p) {
    return slice->shift + slice->num_planes - 1 - p;
}

static void take(uint32_t dtype, const void *src, uint32_t num, uint64_t base, dafi_slice_t *slice) {
    for (uint32_t p = 0; p < slice->num_planes; p++) {
        memset(slice->words[p], 0, sizeof slice->words[p]);
        for (uint32_t j = 0; j < num; j++) {
            uint64_t code = (uint64_t)load_int(dtype, src, j) - base;
            if ((code >> bit_of(slice, p)) & 1u) dafi_set_bit(slice->words[p], j);
        }
    }
}

static void give(uint32_t dtype, void *dst, uint32_t num, const uint64_t *base, const dafi_slice_t *slice) {
    for (uint32_t j = 0; j < num; j++) {
        uint64_t value = base ? *base : (uint64_t)load_int(dtype, dst, j);
        for (uint32_t p = 0; p < slice->num_planes; p++)
            value += (uint64_t)dafi_bit(slice->words[p], j) << bit_of(slice, p);
        store_int(dtype, dst, j, value);
    }
}

static uint64_t take_flags(const uint8_t *flags) {
    uint64_t word = 0;
    for (uint32_t j = 0; j < 64; j++) word |= (uint64_t)(flags[j] != 0) << j;
    return word;
}

static void give_flags(uint64_t word, uint8_t *flags) {
    for (uint32_t j = 0; j < 64; j++) flags[j] = (word >> j) & 1u;
}

static bool take_mask(const uint8_t *src, bool is_wide, uint32_t value, uint64_t words[4]) {
    bool has_third = false;
    memset(words, 0, 4 * sizeof *words);
    for (uint32_t j = 0; j < DAF_GROUP; j++) {
        uint32_t x = 0;
        memcpy(&x, src + j * (is_wide ? 4 : 2), is_wide ? 4 : 2);
        if (x) dafi_set_bit(words, j);
        has_third |= x && x != value;
    }
    return has_third;
}

const dafi_exact_t dafi_exact_reference = {range, take, give, take_flags, give_flags, take_mask};
