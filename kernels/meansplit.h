/* The header arithmetic of the mean-split codecs, shared by every path. */
#ifndef DAF_MEANSPLIT_H
#define DAF_MEANSPLIT_H
#include "numbers.h"

static inline void dafi_put16(uint8_t *to, uint16_t value) {
    memcpy(to, &value, 2);
}
static inline uint16_t dafi_get16(const uint8_t *from) {
    uint16_t value;
    memcpy(&value, from, 2);
    return value;
}

/* Distance of a split's two means; 0 where one part is empty. */
static inline float dafi_split_distance(float lower, uint32_t num_lower, float upper, uint32_t num_upper) {
    return num_lower && num_upper && upper > lower ? upper - lower : 0.0f;
}

/* Stores node i of level s: the root's distance in bf16, any other as its ratio to the root's (as stored). */
static inline void dafi_split_put(uint32_t s, uint32_t i, float d, float *root, uint8_t *head) {
    if (s > 1) {
        head[i] = *root > 0.0f ? dafi_to_ratio(d / *root) : 0;
        return;
    }
    uint16_t stored = dafi_to_bf16(d);
    dafi_put16(head, stored);
    *root = dafi_from_bf16(stored);
}

static inline float dafi_split_get(uint32_t s, uint32_t i, const uint8_t *head, float *root) {
    if (s == 1) return *root = dafi_from_bf16(dafi_get16(head));
    return dafi_from_ratio(head[i]) * *root;
}

/* What was not zero does not become zero, in any element type. */
static inline float dafi_not_zero(float value, float least) {
    return fabsf(value) < least ? least : value;
}
#endif
