/* The header arithmetic of the mean-split codecs, shared by every path. */
#ifndef DAF_MEANSPLIT_H
#define DAF_MEANSPLIT_H
#include "numbers.h"

#define DAFI_ZERO_FLAG 0x8000u /* in the root's distance, which is not negative: the group holds zeros */

static inline void dafi_put16(uint8_t *to, uint16_t value) {
    memcpy(to, &value, 2);
}
static inline uint16_t dafi_get16(const uint8_t *from) {
    uint16_t value;
    memcpy(&value, from, 2);
    return value;
}

/* The nodes of one level, lowest values first. */
typedef struct dafi_nodes {
    float sum[16];
    uint32_t count[16];
} dafi_nodes_t;

static inline float dafi_node_mean(const dafi_nodes_t *nodes, uint32_t i) {
    return nodes->sum[i] / (float)(nodes->count[i] ? nodes->count[i] : 1);
}

/* Splits parent i. The lower part's sum is what is left: its rounding is far below that of the stored distance. */
static inline void dafi_split_nodes(const dafi_nodes_t *parents, uint32_t i, float upper, uint32_t num_upper,
                                    dafi_nodes_t *children) {
    children->sum[2 * i + 1] = upper;
    children->count[2 * i + 1] = num_upper;
    children->sum[2 * i] = parents->sum[i] - upper;
    children->count[2 * i] = parents->count[i] - num_upper;
}

/* Distance of the means of parent i's two parts; 0 where one is empty. */
static inline float dafi_split_distance(const dafi_nodes_t *children, uint32_t i) {
    float distance = dafi_node_mean(children, 2 * i + 1) - dafi_node_mean(children, 2 * i);
    return children->count[2 * i] && children->count[2 * i + 1] && distance > 0.0f ? distance : 0.0f;
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

/* The nodes of one level as a decoder has them, and the node that zero belongs to. */
typedef struct dafi_means {
    float mean[16];
    uint32_t count[16];
    float root;    /* distance of the root's parts */
    bool has_zero; /* the group holds zeros: node `zero` decodes to zero */
    uint32_t zero;
} dafi_means_t;

/* The root's distance, or 16 more bits of the mean where nothing is above it: all elements are one value. */
static inline void dafi_root_get(uint16_t stored, bool has_upper, dafi_means_t *means) {
    if (!has_upper) means->mean[0] = dafi_float_of(dafi_bits_of(means->mean[0]) | stored);
    means->root = has_upper ? dafi_from_bf16((uint16_t)(stored & ~DAFI_ZERO_FLAG)) : 0.0f;
    means->has_zero = has_upper && stored & DAFI_ZERO_FLAG;
}

/* Replaces the nodes of level s - 1 by those of level s; upper[i]: elements in the upper part of node i. */
static inline void dafi_split_means(uint32_t s, const uint8_t *head, const uint32_t *upper, dafi_means_t *means) {
    float *mean = means->mean;
    uint32_t *count = means->count;
    if (s == 1) dafi_root_get(dafi_get16(head), upper[0] > 0, means);
    means->zero = 2 * means->zero + (0.0f > mean[means->zero]);
    for (uint32_t i = 1u << (s - 1); i-- > 0;) {
        float distance = s == 1 ? means->root : dafi_from_ratio(head[i]) * means->root;
        float lower = mean[i] - distance * ((float)upper[i] / (float)(count[i] ? count[i] : 1));
        mean[2 * i + 1] = lower + distance;
        mean[2 * i] = lower;
        count[2 * i + 1] = upper[i];
        count[2 * i] = count[i] - upper[i];
    }
}

/* What was not zero does not become zero, in any element type. */
static inline float dafi_not_zero(float value, float least) {
    return fabsf(value) < least ? least : value;
}
#endif
