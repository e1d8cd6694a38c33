/* The fast paths of integers, flags and masks: plain loops over one type each, which the compiler turns into vectors of
 * this instruction set; bits by b_test and unpack64. */
#include "codecs/exact_bits.h"

/* Calls `macro` with a dtype's type, of any alignment, and its unsigned twin. */
#define EACH_INTEGER(dtype, macro)                                                                                     \
    switch (dtype) {                                                                                                   \
    case DAF_INT64:                                                                                                    \
        macro(int64_t, uint64_t) break;                                                                                \
    case DAF_INT32:                                                                                                    \
        macro(int32_t, uint32_t) break;                                                                                \
    case DAF_INT16:                                                                                                    \
        macro(int16_t, uint16_t) break;                                                                                \
    case DAF_INT8:                                                                                                     \
        macro(int8_t, uint8_t) break;                                                                                  \
    default:                                                                                                           \
        macro(uint8_t, uint8_t) break;                                                                                 \
    }

static void exact_range(uint32_t dtype, const void *src, uint32_t num, int64_t *low, int64_t *high){
#define RANGE(type, word)                                                                                              \
    {                                                                                                                  \
        typedef type any __attribute__((aligned(1), may_alias));                                                       \
        const any *x = src;                                                                                            \
        type least = x[0], most = x[0];                                                                                \
        for (uint32_t j = 0; j < num; j++) {                                                                           \
            type value = x[j];                                                                                         \
            least = value < least ? value : least;                                                                     \
            most = value > most ? value : most;                                                                        \
        }                                                                                                              \
        *low = least, *high = most;                                                                                    \
    }
    EACH_INTEGER(dtype, RANGE)
#undef RANGE
}

/* Eight bits of every code; bits beyond the type's are zero. */
FN void exact_codes(uint32_t dtype, const void *src, uint32_t num, uint64_t base, uint32_t shift, uint8_t *codes) {
#define CODES(type, word)                                                                                              \
    {                                                                                                                  \
        typedef word any __attribute__((aligned(1), may_alias));                                                       \
        const any *x = src;                                                                                            \
        word least = (word)base;                                                                                       \
        if (shift < 8 * sizeof(word))                                                                                  \
            for (uint32_t j = 0; j < num; j++) codes[j] = (uint8_t)((word)(x[j] - least) >> shift);                    \
        else                                                                                                           \
            memset(codes, 0, num);                                                                                     \
    }
    EACH_INTEGER(dtype, CODES)
#undef CODES
}

static void exact_take(uint32_t dtype, const void *src, uint32_t num, uint64_t base, dafi_slice_t *slice) {
    uint8_t codes[DAFI_BLOCK] __attribute__((aligned(64)));
    exact_codes(dtype, src, num, base, slice->shift, codes);
    if (num < DAFI_BLOCK) memset(codes + num, 0, DAFI_BLOCK - num);
    for (uint32_t w = 0; w < DAFI_BLOCK / 64; w++)
        for (uint32_t p = 0; p < slice->num_planes; p++)
            slice->words[p][w] = b_test(b_load(codes + 64 * w), slice->num_planes - 1 - p);
}

/* Adds eight bits of every code to x, or to the base. */
FN void exact_add(uint32_t dtype, void *dst, uint32_t num, const uint64_t *base, uint32_t shift, const uint8_t *codes) {
#define ADD(type, word)                                                                                                \
    {                                                                                                                  \
        typedef word any __attribute__((aligned(1), may_alias));                                                       \
        any *x = dst;                                                                                                  \
        word least = (word)(base ? *base : 0);                                                                         \
        uint32_t by = shift % (8 * sizeof(word)), keep = shift == by ? 0xff : 0; /* none beyond the type */            \
        if (base)                                                                                                      \
            for (uint32_t j = 0; j < num; j++) x[j] = (word)(least + (word)((word)(codes[j] & keep) << by));           \
        else                                                                                                           \
            for (uint32_t j = 0; j < num; j++) x[j] = (word)(x[j] + (word)((word)(codes[j] & keep) << by));            \
    }
    EACH_INTEGER(dtype, ADD)
#undef ADD
}

static void exact_give(uint32_t dtype, void *dst, uint32_t num, const uint64_t *base, const dafi_slice_t *slice) {
    uint8_t codes[DAFI_BLOCK] __attribute__((aligned(64)));
    uint64_t words[DAFI_SLICE_PLANES];
    for (uint32_t w = 0; w < (num + 63) / 64; w++) {
        for (uint32_t p = 0; p < slice->num_planes; p++) words[p] = slice->words[p][w];
        unpack64(words, slice->num_planes, codes + 64 * w);
    }
    exact_add(dtype, dst, num, base, slice->shift, codes);
}

static uint64_t exact_take_flags(const uint8_t *flags) {
    uint8_t codes[64] __attribute__((aligned(64)));
    for (uint32_t j = 0; j < 64; j++) codes[j] = flags[j] != 0;
    return b_test(b_load(codes), 0);
}

static void exact_give_flags(uint64_t word, uint8_t *flags) {
    unpack64(&word, 1, flags);
}

FN uint64_t mask64(const uint8_t *src, bool is_wide, uint32_t value, uint32_t *third) {
    uint64_t word = 0;
    for (uint32_t k = 0; k < 4; k++) {
        vi x = is_wide ? i_load(src + 64 * k) : i_load_u16(src + 32 * k);
        uint32_t zero = m_bits(i_eq(x, i_set1(0)));
        word |= (uint64_t)(~zero & 0xffffu) << (16 * k);
        *third |= ~(zero | m_bits(i_eq(x, i_set1(value)))) & 0xffffu;
    }
    return word;
}

static bool exact_take_mask(const uint8_t *src, bool is_wide, uint32_t value, uint64_t words[4]) {
    uint32_t third = 0;
    for (uint32_t w = 0; w < 4; w++)
        words[w] = is_wide ? mask64(src + 256 * w, true, value, &third) : mask64(src + 128 * w, false, value, &third);
    return third != 0;
}

static const dafi_exact_t exact = {exact_range,      exact_take,       exact_give,
                                   exact_take_flags, exact_give_flags, exact_take_mask};
