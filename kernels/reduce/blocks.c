/* Block kernels of the range reduction, once per instruction set: the same loops over vectors of its width. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "reduce/reduce.h"

/* A float's bits as a signed integer of the same order: positive floats already are, negative ones run backwards. The
 * macros take a single value or a vector of them. */
#define KEY_F32(bits) ((bits) ^ (((bits) >> 31) & 0x7fffffff))
#define KEY_F16(bits) ((bits) ^ (((bits) >> 15) & 0x7fff))
#define KEY_INT(value) (value)
#define FINITE_F32(bits) (((bits)&0x7fffffff) < 0x7f800000)
#define FINITE_BF16(bits) (((bits)&0x7fff) < 0x7f80)
#define FINITE_F16(bits) (((bits)&0x7fff) < 0x7c00)
#define FINITE_INT(value) ((value) == (value))

/* Vectors have no conditional in C: a comparison gives all ones or none, and masks choose. */
#define CHOOSE(mask, yes, no) (((yes) & (mask)) | ((no) & ~(mask)))

enum { TILE = 4 }; /* vectors folded side by side: a few cache lines of each row, and no waiting for the last result */

/* A last, incomplete vector is read again from where a whole one ends: folding a value twice changes nothing. */
#define LAST(i, lanes, count) ((i) + (lanes) <= (count) ? (i) : (count) - (lanes))

/* Keys widen to int64 only where they leave a block, so lanes stay as narrow as the values. */
#define FOLD_INTO(low, high, lo, hi)                                                                                   \
    do {                                                                                                               \
        *(lo) = (low) < *(lo) ? (low) : *(lo);                                                                         \
        *(hi) = (high) > *(hi) ? (high) : *(hi);                                                                       \
    } while (0)

#define DEFINE_KERNELS(isa, attributes, width, name, key_t, least, greatest, KEY, FINITE)                              \
    typedef key_t name##_##isa __attribute__((vector_size(width), aligned(sizeof(key_t)), may_alias));                 \
    enum { name##_##isa##_lanes = (width) / sizeof(key_t) };                                                           \
    attributes static inline void fold_##name##_##isa(const key_t *value, name##_##isa *low, name##_##isa *high) {     \
        name##_##isa bits = *(const name##_##isa *)value, key = KEY(bits);                                             \
        name##_##isa finite = (name##_##isa)FINITE(bits), none = bits ^ bits;                                          \
        name##_##isa below = CHOOSE(finite, key, none + (key_t)(greatest));                                            \
        name##_##isa above = CHOOSE(finite, key, none + (key_t)(least));                                               \
        *low = CHOOSE((name##_##isa)(below < *low), below, *low);                                                      \
        *high = CHOOSE((name##_##isa)(above > *high), above, *high);                                                   \
    }                                                                                                                  \
    /* `rows` rows of `tiles` vectors, `stride` values apart, into low[tiles * lanes] and high. */                     \
    attributes static inline void tile_##name##_##isa(const key_t *value, int64_t rows, int64_t stride, int tiles,     \
                                                      key_t *lows, key_t *highs) {                                     \
        name##_##isa low[TILE] = {{0}}, high[TILE] = {{0}};                                                            \
        for (int t = 0; t < tiles; t++) low[t] += (key_t)(greatest), high[t] += (key_t)(least);                        \
        for (int64_t r = 0; r < rows; r++, value += stride)                                                            \
            for (int t = 0; t < tiles; t++) fold_##name##_##isa(value + t * name##_##isa##_lanes, low + t, high + t);  \
        memcpy(lows, low, (size_t)tiles *(width));                                                                     \
        memcpy(highs, high, (size_t)tiles *(width));                                                                   \
    }                                                                                                                  \
    static void one_##name##_##isa(key_t value, int64_t *lo, int64_t *hi) {                                            \
        if (!FINITE(value)) return;                                                                                    \
        key_t key = (key_t)KEY(value);                                                                                 \
        FOLD_INTO(key, key, lo, hi);                                                                                   \
    }                                                                                                                  \
    attributes static void run_##name##_##isa(const void *values, int64_t count, int64_t *lo, int64_t *hi) {           \
        const key_t *value = values;                                                                                   \
        const int lanes = name##_##isa##_lanes;                                                                        \
        int64_t whole = count / (TILE * lanes), done = whole * TILE * lanes;                                           \
        key_t low[TILE * name##_##isa##_lanes], high[TILE * name##_##isa##_lanes];                                     \
        tile_##name##_##isa(value, whole, TILE *lanes, TILE, low, high);                                               \
        for (int64_t i = done; count >= lanes && i < count; i += lanes)                                                \
            fold_##name##_##isa(value + LAST(i, lanes, count), (name##_##isa *)low, (name##_##isa *)high);             \
        for (int half = TILE * lanes / 2; half; half /= 2)                                                             \
            for (int k = 0; k < half; k++) FOLD_INTO(low[half + k], high[half + k], low + k, high + k);                \
        FOLD_INTO(low[0], high[0], lo, hi);                                                                            \
        for (int64_t i = 0; i < count && count < lanes; i++) one_##name##_##isa(value[i], lo, hi);                     \
    }                                                                                                                  \
    attributes static void columns_##name##_##isa(const void *values, int64_t rows, int64_t cols, int64_t *lo,         \
                                                  int64_t *hi) {                                                       \
        const key_t *value = values;                                                                                   \
        const int lanes = name##_##isa##_lanes;                                                                        \
        key_t low[TILE * name##_##isa##_lanes], high[TILE * name##_##isa##_lanes];                                     \
        int64_t c = 0;                                                                                                 \
        for (; c + TILE * lanes <= cols; c += TILE * lanes) {                                                          \
            tile_##name##_##isa(value + c, rows, cols, TILE, low, high);                                               \
            for (int k = 0; k < TILE * lanes; k++) FOLD_INTO(low[k], high[k], lo + c + k, hi + c + k);                 \
        }                                                                                                              \
        for (; cols >= lanes && c < cols; c += lanes) {                                                                \
            int64_t at = LAST(c, lanes, cols);                                                                         \
            tile_##name##_##isa(value + at, rows, cols, 1, low, high);                                                 \
            for (int k = 0; k < lanes; k++) FOLD_INTO(low[k], high[k], lo + at + k, hi + at + k);                      \
        }                                                                                                              \
        for (int64_t i = 0; i < rows * cols && cols < lanes; i++)                                                      \
            one_##name##_##isa(value[i], lo + i % cols, hi + i % cols);                                                \
    }

static double real_f32(int64_t key) {
    int32_t bits = KEY_F32((int32_t)key);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double real_bf16(int64_t key) {
    uint32_t bits = (uint32_t)(uint16_t)KEY_F16((int16_t)key) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double real_f16(int64_t key) {
    uint16_t bits = (uint16_t)KEY_F16((int16_t)key);
    int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

#define DEFINE_ISA(isa, attributes, width)                                                                             \
    DEFINE_KERNELS(isa, attributes, width, f32, int32_t, INT32_MIN, INT32_MAX, KEY_F32, FINITE_F32)                    \
    DEFINE_KERNELS(isa, attributes, width, bf16, int16_t, INT16_MIN, INT16_MAX, KEY_F16, FINITE_BF16)                  \
    DEFINE_KERNELS(isa, attributes, width, f16, int16_t, INT16_MIN, INT16_MAX, KEY_F16, FINITE_F16)                    \
    DEFINE_KERNELS(isa, attributes, width, i64, int64_t, INT64_MIN, INT64_MAX, KEY_INT, FINITE_INT)                    \
    DEFINE_KERNELS(isa, attributes, width, i32, int32_t, INT32_MIN, INT32_MAX, KEY_INT, FINITE_INT)                    \
    DEFINE_KERNELS(isa, attributes, width, i16, int16_t, INT16_MIN, INT16_MAX, KEY_INT, FINITE_INT)                    \
    DEFINE_KERNELS(isa, attributes, width, i8, int8_t, INT8_MIN, INT8_MAX, KEY_INT, FINITE_INT)                        \
    DEFINE_KERNELS(isa, attributes, width, u8, uint8_t, 0, UINT8_MAX, KEY_INT, FINITE_INT)                             \
    static const dafi_reduce_kernels_t table_##isa[] = {                                                               \
        [DAF_FLOAT32] = {run_f32_##isa, columns_f32_##isa, 4, real_f32},                                               \
        [DAF_BFLOAT16] = {run_bf16_##isa, columns_bf16_##isa, 2, real_bf16},                                           \
        [DAF_FLOAT16] = {run_f16_##isa, columns_f16_##isa, 2, real_f16},                                               \
        [DAF_INT64] = {run_i64_##isa, columns_i64_##isa, 8, NULL},                                                     \
        [DAF_INT32] = {run_i32_##isa, columns_i32_##isa, 4, NULL},                                                     \
        [DAF_INT16] = {run_i16_##isa, columns_i16_##isa, 2, NULL},                                                     \
        [DAF_INT8] = {run_i8_##isa, columns_i8_##isa, 1, NULL},                                                        \
        [DAF_UINT8] = {run_u8_##isa, columns_u8_##isa, 1, NULL},                                                       \
        [DAF_BOOL] = {run_u8_##isa, columns_u8_##isa, 1, NULL},                                                        \
    };

#define PORTABLE
DEFINE_ISA(portable, PORTABLE, 16)
#ifdef __x86_64__
DEFINE_ISA(avx2, __attribute__((target("avx2"))), 32)
DEFINE_ISA(avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))), 64)
#endif

/* The table of the instruction set in force; portable vectors are NEON's and SSE's. */
static const dafi_reduce_kernels_t *table_in_force(void) {
#ifdef __x86_64__
    const char *isa = daf_isa();
    if (strcmp(isa, "avx512") == 0) return table_avx512;
    if (strcmp(isa, "avx2") == 0) return table_avx2;
#endif
    return table_portable;
}

const dafi_reduce_kernels_t *dafi_reduce_kernels(uint32_t dtype) {
    return dtype <= DAF_BOOL ? table_in_force() + dtype : NULL;
}
