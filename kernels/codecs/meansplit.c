/* Mean-split tree: a group is cut at its mean, each part at its own mean, and so on; a part decodes to its mean. And
 * the same over the non-zero elements only, with an exact support plane (ReLU-like tensors).
 *
 * Header, stream 0:  | mean of the group, bf16 |
 *         stream 1:  | d of the root, bf16 |                    d = mean of the upper part - mean of the lower part
 *         stream s:  | d / d of the root, 8 bits | ... one byte for each of the 2^(s-1) nodes, lowest values first
 * The parts' sizes are counts of plane bits, so the parent's mean and d give the two means of a split:
 *         lower = mean - d * upper_count / count,  upper = lower + d
 * A dropped plane takes its own headers along, and what is left is the best tree of that depth.
 *
 * Zeros come back as zeros, with any plane left. A group that holds some has the sign of the root's d set, and is cut
 * at the means that a decoder has, not at the true ones: so both know in which part of each node zero is, and that leaf
 * decodes to zero. A group of one value has nothing above its mean, and 16 more bits of the value in place of d.
 */
#include "groups/span.h"
#include "codecs/meansplit.h"

static uint32_t head_bytes(uint32_t stream) {
    return stream <= 1 ? 2 : 1u << (stream - 1);
}

/* Sum of the marked elements: partial sums by position, then halves onto halves. Every path adds in this order. */
static float ordered_sum(const float *x, const bool *is_in, uint32_t num, uint32_t lanes) {
    float partial[64] = {0};
    for (uint32_t j = 0; j < num; j++)
        if (is_in[j]) partial[j % lanes] += x[j];
    for (uint32_t half = lanes / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++) partial[i] += partial[i + half];
    return partial[0];
}

#define OUTSIDE 0xff /* the node of elements that are zero by the support plane */

/* Cuts every element's node at its threshold: writes plane s, moves the elements to their child nodes. */
static void cut_level(uint32_t s, const float *x, const float *threshold, uint8_t *nodes, dafi_group_t *out) {
    for (uint32_t j = 0; j < out->num; j++) {
        if (nodes[j] == OUTSIDE) continue;
        bool is_upper = x[j] > threshold[nodes[j]];
        if (is_upper) dafi_set_bit(out->plane[s], j);
        nodes[j] = (uint8_t)(2 * nodes[j] + is_upper);
    }
}

/* Sum and count of the elements in `node`. */
static float measure(const dafi_group_job_t *job, const float *x, const uint8_t *nodes, uint32_t node, uint32_t num,
                     uint32_t *count) {
    bool is_in[DAF_GROUP] = {false};
    *count = 0;
    for (uint32_t j = 0; j < num; j++) *count += is_in[j] = nodes[j] == node;
    return ordered_sum(x, is_in, num, job->lanes);
}

/* What a group decodes to that has nothing above its mean, or nothing below: its one value, or its mean where rounding
 * is all that tells its elements apart. */
static float flat_value(const float *x, const uint8_t *nodes, uint32_t num, bool has_zero, float mean) {
    const float *first = NULL;
    for (uint32_t j = 0; j < num; j++) {
        if (nodes[j] == OUTSIDE) continue;
        first = first ? first : &x[j];
        if (x[j] != *first) return has_zero ? 0.0f : mean;
    }
    return first ? *first + 0.0f : 0.0f;
}

static void put_flat(float value, dafi_group_t *out) {
    memset(out->plane[1], 0, sizeof out->plane[1]);
    dafi_put16(out->head[0], (uint16_t)(dafi_bits_of(value) >> 16));
    dafi_put16(out->head[1], (uint16_t)dafi_bits_of(value));
}

/* Splits all nodes of level s - 1 by the elements' new nodes, and writes the headers. upper: elements above. */
static void split_level(const dafi_group_job_t *job, uint32_t s, const float *x, const uint8_t *nodes, float *root,
                        dafi_nodes_t *level, uint32_t *upper, dafi_group_t *out) {
    dafi_nodes_t children;
    for (uint32_t i = 0; i < 1u << (s - 1); i++) {
        float sum = measure(job, x, nodes, 2 * i + 1, out->num, &upper[i]);
        dafi_split_nodes(level, i, sum, upper[i], &children);
        dafi_split_put(s, i, dafi_split_distance(&children, i), root, out->head[s]);
    }
    *level = children;
}

static void encode_tree(const dafi_group_job_t *job, const float *x, bool has_zero, uint8_t *nodes, dafi_group_t *out) {
    dafi_nodes_t level;
    dafi_means_t decoded = {0};
    float root = 0.0f, threshold[16];
    level.sum[0] = measure(job, x, nodes, 0, out->num, &level.count[0]);
    float mean = dafi_node_mean(&level, 0);
    uint32_t upper[8], count = decoded.count[0] = level.count[0];
    dafi_put16(out->head[0], dafi_to_bf16(mean));
    decoded.mean[0] = dafi_from_bf16(dafi_get16(out->head[0]));
    for (uint32_t s = 1; s <= job->bits; s++) {
        for (uint32_t i = 0; i < 1u << (s - 1); i++)
            threshold[i] = has_zero ? decoded.mean[i] : dafi_node_mean(&level, i);
        cut_level(s, x, threshold, nodes, out);
        split_level(job, s, x, nodes, &root, &level, upper, out);
        if (s == 1 && (upper[0] == 0 || upper[0] == count)) {
            for (uint32_t j = 0; j < out->num; j++) nodes[j] = nodes[j] == OUTSIDE ? OUTSIDE : 0;
            put_flat(flat_value(x, nodes, out->num, has_zero, mean), out);
            return;
        }
        if (s == 1 && has_zero) out->head[1][1] |= DAFI_ZERO_FLAG >> 8;
        dafi_split_means(s, out->head[s], upper, &decoded);
    }
}

static void encode(const dafi_group_job_t *job, const float *x, dafi_group_t *out, bool has_support) {
    uint8_t nodes[DAF_GROUP] = {0};
    bool has_zero = false;
    for (uint32_t j = 0; j < out->num; j++) {
        has_zero |= x[j] == 0.0f;
        if (!has_support) continue;
        if (x[j] != 0.0f)
            dafi_set_bit(out->plane[0], j);
        else
            nodes[j] = OUTSIDE;
    }
    if (!dafi_is_escaped(x, out->num)) {
        encode_tree(job, x, has_zero && !has_support, nodes, out);
        return;
    }
    uint16_t mean;
    dafi_escape_encode(x, job->bits, out, &mean);
    dafi_put16(out->head[0], DAFI_BF16_NAN);
    dafi_put16(out->head[1], mean);
}

static void encode_all(const dafi_group_job_t *job, const float *x, dafi_group_t *out) {
    encode(job, x, out, false);
}
static void encode_support(const dafi_group_job_t *job, const float *x, dafi_group_t *out) {
    encode(job, x, out, true);
}

/* Fills nodes with each element's leaf and means with the leaves' values. */
static void decode_tree(const dafi_group_job_t *job, const dafi_group_t *in, uint8_t *nodes, dafi_means_t *means) {
    for (uint32_t j = 0; j < in->num; j++) means->count[0] += nodes[j] != OUTSIDE;
    means->mean[0] = dafi_from_bf16(dafi_get16(in->head[0]));
    for (uint32_t s = 1; s <= job->live; s++) {
        uint32_t upper[8] = {0};
        for (uint32_t j = 0; j < in->num; j++) {
            if (nodes[j] == OUTSIDE) continue;
            bool is_upper = dafi_bit(in->plane[s], j);
            upper[nodes[j]] += is_upper;
            nodes[j] = (uint8_t)(2 * nodes[j] + is_upper);
        }
        dafi_split_means(s, in->head[s], upper, means);
    }
    if (means->has_zero) means->mean[means->zero] = 0.0f;
}

static void decode(const dafi_group_job_t *job, const dafi_group_t *in, float *x, bool has_support) {
    uint8_t nodes[DAF_GROUP] = {0};
    dafi_means_t means = {0};
    for (uint32_t j = 0; has_support && j < in->num; j++) nodes[j] = dafi_bit(in->plane[0], j) ? 0 : OUTSIDE;
    if (isnan(dafi_from_bf16(dafi_get16(in->head[0])))) {
        dafi_escape_decode(in, job->live, dafi_get16(in->head[1]), x);
        for (uint32_t j = 0; j < in->num; j++)
            if (nodes[j] == OUTSIDE)
                x[j] = 0.0f;
            else if (has_support)
                x[j] = dafi_not_zero(x[j], job->least);
        return;
    }
    decode_tree(job, in, nodes, &means);
    for (uint32_t i = 0; has_support && i < 1u << job->live; i++)
        means.mean[i] = dafi_not_zero(means.mean[i], job->least);
    for (uint32_t j = 0; j < in->num; j++) x[j] = nodes[j] == OUTSIDE ? 0.0f : means.mean[nodes[j]];
}

static void decode_all(const dafi_group_job_t *job, const dafi_group_t *in, float *x) {
    decode(job, in, x, false);
}
static void decode_support(const dafi_group_job_t *job, const dafi_group_t *in, float *x) {
    decode(job, in, x, true);
}

const dafi_group_codec_t dafi_meansplit_groups = {DAFI_MEANSPLIT, false, head_bytes, encode_all, decode_all};
static const dafi_group_codec_t support = {DAFI_SUPPORT, true, head_bytes, encode_support, decode_support};

const dafi_codec_t dafi_codec_meansplit = {
    "meansplit",       1, 4, dafi_grouped_plan, dafi_grouped_encode, dafi_grouped_decode, &dafi_meansplit_groups,
    dafi_group_gather,
};
const dafi_codec_t dafi_codec_support = {
    "support", 0, 4, dafi_grouped_plan, dafi_grouped_encode, dafi_grouped_decode, &support, dafi_group_gather,
};
