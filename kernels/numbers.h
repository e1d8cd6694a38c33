/* Number formats and random numbers, as every path must compute them. Scalar and bit-exact. */
#ifndef DAF_NUMBERS_H
#define DAF_NUMBERS_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "planes.h"

/* Elements at or beyond this count as infinite, so that no sum or difference of a group's elements overflows. */
#define DAFI_HUGE 0x1p118f
#define DAFI_BF16_NAN 0x7fc0u
#define DAFI_F16_MAX 65504.0f
#define DAFI_F16_TINY 0x1p-24f

static inline uint32_t dafi_bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float dafi_float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float dafi_from_bf16(uint16_t half) {
    return dafi_float_of((uint32_t)half << 16);
}

/* To the nearest, ties to even. */
static inline uint16_t dafi_to_bf16(float value) {
    uint32_t bits = dafi_bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return DAFI_BF16_NAN;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Towards minus infinity. */
static inline uint16_t dafi_to_bf16_down(float value) {
    uint32_t bits = dafi_bits_of(value);
    return (uint16_t)((bits + ((bits >> 31) ? 0xffffu : 0u)) >> 16);
}

/* Away from zero; `value` is not negative. */
static inline uint16_t dafi_to_bf16_up(float value) {
    return (uint16_t)((dafi_bits_of(value) + 0xffffu) >> 16);
}

static inline float dafi_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u)
        return dafi_float_of(sign | 0x7f800000u | ((rest & 0x3ffu) << 13) | ((rest & 0x3ffu) ? 0x400000u : 0u));
    float magnitude = dafi_float_of(rest << 13) * 0x1p112f; /* exact: moves the exponent's bias, subnormals too */
    return dafi_float_of(dafi_bits_of(magnitude) | sign);
}

/* To the nearest, ties to even; a finite value stays finite. */
static inline uint16_t dafi_to_f16(float value) {
    uint32_t bits = dafi_bits_of(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (rest == 0x7f800000u) return (uint16_t)(sign | 0x7c00u);
    float magnitude = fminf(dafi_float_of(rest), DAFI_F16_MAX);
    if (magnitude < 0x1p-14f) return (uint16_t)(sign | (dafi_bits_of(magnitude + 0.5f) - 0x3f000000u));
    rest = dafi_bits_of(magnitude);
    rest += 0xfffu + ((rest >> 13) & 1u) - (112u << 23);
    return (uint16_t)(sign | (rest >> 13));
}

static inline bool dafi_is_regular(float value) {
    return fabsf(value) < DAFI_HUGE;
}

/* Ratio >= 0 in 8 bits: 5 of exponent, 3 of fraction, from 2^-20 to 2^11 * 1.875; no zero. */
#define DAFI_RATIO_BIAS (107u << 3)

static inline uint8_t dafi_to_ratio(float ratio) {
    uint32_t code = (dafi_bits_of(ratio) + (1u << 19)) >> 20;
    if (code <= DAFI_RATIO_BIAS) return 0;
    code -= DAFI_RATIO_BIAS;
    return (uint8_t)(code > 255u ? 255u : code);
}

static inline float dafi_from_ratio(uint8_t code) {
    return dafi_float_of((code + DAFI_RATIO_BIAS) << 20);
}

/* Random numbers are a function of (seed, group, position in the group). A group's key is splitmix64 of seed and group;
 * positions j and j + 16 of each 32 share one 32-bit hash of the key: its low and its high half. */
static inline uint32_t dafi_group_key(uint64_t seed, uint64_t group) {
    uint64_t z = seed + (group + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

#define DAFI_COUNTER_STEP 0x9E3779B1u
#define DAFI_MIX_1 0x7FEB352Du
#define DAFI_MIX_2 0x846CA68Bu

static inline uint32_t dafi_random16(uint32_t key, uint32_t position) {
    uint32_t counter = (position / 32) * 16 + position % 16;
    uint32_t x = key ^ (counter * DAFI_COUNTER_STEP);
    x = (x ^ (x >> 16)) * DAFI_MIX_1;
    x = (x ^ (x >> 15)) * DAFI_MIX_2;
    x ^= x >> 16;
    return (position & 16u) ? x >> 16 : x & 0xffffu;
}

static inline size_t dafi_itemsize(uint32_t dtype) {
    static const uint8_t sizes[] = {4, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16};
    return sizes[dtype];
}

static inline float dafi_load(uint32_t dtype, const void *src, uint64_t index) {
    uint32_t word;
    uint16_t half;
    if (dtype == DAF_FLOAT32) {
        memcpy(&word, (const uint8_t *)src + 4 * index, 4);
        return dafi_float_of(word);
    }
    memcpy(&half, (const uint8_t *)src + 2 * index, 2);
    return dtype == DAF_BFLOAT16 ? dafi_from_bf16(half) : dafi_from_f16(half);
}

/* sum[j] += element j if that is regular, and count[j] += 1, or DAFI_COUNT_OF_ZERO, for j = first .. num - 1. */
#define DAFI_COUNT_OF_ZERO 0x10000u
static inline void dafi_add_regular(uint32_t dtype, const void *src, uint64_t first, uint64_t num, float *sum,
                                    uint32_t *count) {
    for (uint64_t j = first; j < num; j++) {
        float x = dafi_load(dtype, src, j);
        if (!dafi_is_regular(x)) continue;
        sum[j] += x;
        count[j] += x == 0.0f ? DAFI_COUNT_OF_ZERO : 1;
    }
}

static inline void dafi_store(uint32_t dtype, void *dst, uint64_t index, float value) {
    if (dtype == DAF_FLOAT32) {
        memcpy((uint8_t *)dst + 4 * index, &value, 4);
        return;
    }
    uint16_t half = dtype == DAF_BFLOAT16 ? dafi_to_bf16(value) : dafi_to_f16(value);
    memcpy((uint8_t *)dst + 2 * index, &half, 2);
}
#endif
