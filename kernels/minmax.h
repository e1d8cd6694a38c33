/* The header arithmetic of the min/max codecs, shared by every path. */
#ifndef DAF_MINMAX_H
#define DAF_MINMAX_H
#include "numbers.h"

/* Below this a step counts as none: its inverse must stay finite. */
#define DAFI_LEAST_SCALE 0x1p-100f

static inline void dafi_minmax_head(float low, float high, uint32_t bits, uint16_t head[2]) {
    head[0] = dafi_to_bf16_down(low + 0.0f); /* + 0: the minimum of -0 and 0 is either */
    float scale = (high - dafi_from_bf16(head[0])) / (float)((1u << bits) - 1);
    head[1] = scale < DAFI_LEAST_SCALE ? 0 : dafi_to_bf16_up(scale);
}

/* Codes per unit, times 2^16. */
static inline float dafi_minmax_inverse(float scale) {
    return scale > 0.0f ? 65536.0f / scale : 0.0f;
}

/* value = low + step * code for a code of `live` of the `bits` planes. */
static inline void dafi_minmax_affine(const uint16_t head[2], uint32_t bits, uint32_t live, float *low, float *step) {
    uint32_t width = 1u << (bits - live);
    float scale = dafi_from_bf16(head[1]);
    *step = scale * (float)width;
    *low = dafi_from_bf16(head[0]) + scale * ((float)(width - 1) * 0.5f);
}
#endif
