/* The header arithmetic of the min/max codecs, shared by every path.
 *
 *   header        first 16 bits         second 16 bits
 *   plain         low, bf16             scale, bf16
 *   with zeros    the code of zero      1 | scale, bf16 without its sign
 *   all equal     1 | bits 2..16        1 | bits 17..31 of the value; bits 1 and 0 are plane 1 of elements 0 and 1
 *   not finite    NaN                   mean, bf16 (escape.c)
 */
#ifndef DAF_MINMAX_H
#define DAF_MINMAX_H
#include "numbers.h"

/* Below this a step counts as none: its inverse must stay finite. */
#define DAFI_LEAST_SCALE 0x1p-100f
#define DAFI_HEAD_FLAG 0x8000u
#define DAFI_NO_CODE 0xffffffffu

/* Codes per unit, times 2^16. */
static inline float dafi_minmax_inverse(float scale) {
    return scale > 0.0f ? 65536.0f / scale : 0.0f;
}

/* The code of x: to the nearest where round is one half of 2^16. */
static inline uint32_t dafi_minmax_code(float x, float low, float inverse, uint32_t bits, uint32_t round) {
    int32_t fixed = (int32_t)((x - low) * inverse), most = ((1 << bits) - 1) << 16; /* 16 bits of fraction */
    fixed = fixed > most ? most : fixed < 0 ? 0 : fixed;
    return ((uint32_t)fixed + round) >> 16;
}

/* Of a group whose elements are not all equal. Zeros among them must come back: then zero is one of the levels, which
 * shifts the grid by at most half a step, and an element that is outside of it now is no further from its end. */
static inline void dafi_minmax_head(float low, float high, uint32_t bits, bool has_zero, uint16_t head[2]) {
    low += 0.0f; /* the minimum of -0 and 0 is either */
    head[0] = dafi_to_bf16_down(low);
    float scale = (high - (has_zero ? low : dafi_from_bf16(head[0]))) / (float)((1u << bits) - 1);
    head[1] = scale < DAFI_LEAST_SCALE ? 0 : dafi_to_bf16_up(scale);
    if (!has_zero) return;
    head[0] = (uint16_t)dafi_minmax_code(0.0f, low, dafi_minmax_inverse(dafi_from_bf16(head[1])), bits, 0x8000u);
    head[1] |= DAFI_HEAD_FLAG;
}

/* Whether all elements are one value that 16 bits do not hold. */
static inline bool dafi_is_constant(float low, float high) {
    return low == high && (dafi_bits_of(low) & 0xffffu);
}
static inline bool dafi_minmax_is_constant(const uint16_t head[2]) {
    return head[0] & head[1] & DAFI_HEAD_FLAG;
}

/* The value of code 0, and the step. */
static inline float dafi_minmax_grid(const uint16_t head[2], float *scale) {
    *scale = dafi_from_bf16((uint16_t)(head[1] & ~DAFI_HEAD_FLAG));
    return head[1] & DAFI_HEAD_FLAG ? 0.0f - *scale * (float)head[0] : dafi_from_bf16(head[0]);
}

/* value = low + step * code for a code of `live` of the `bits` planes. Returns the code that is zero instead. */
static inline uint32_t dafi_minmax_affine(const uint16_t head[2], uint32_t bits, uint32_t live, float *low,
                                          float *step) {
    float scale, first = dafi_minmax_grid(head, &scale);
    uint32_t width = 1u << (bits - live);
    *step = scale * (float)width;
    *low = first + scale * ((float)(width - 1) * 0.5f);
    return live && head[1] & DAFI_HEAD_FLAG ? (uint32_t)head[0] >> (bits - live) : DAFI_NO_CODE;
}
#endif
