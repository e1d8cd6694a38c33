/* Min/max affine: q = (x - low) / scale, value = low + scale * q. To the nearest, or stochastic and so unbiased.
 *
 * Header, stream 0:  | low bf16, rounded down | scale bf16, rounded up |    (minmax.h: and three other forms)
 * With k of the b planes dropped a code stands for 2^k codes, and decodes to their centre.
 * Error: nearest scale * 2^k / 2; stochastic scale at k = 0, else scale * (2^k + 1) / 2.
 * Zeros come back as zeros with any plane left: the code that they are in is zero, and what else is in it, too.
 */
#include "groups/span.h"
#include "codecs/minmax.h"

static uint32_t head_bytes(uint32_t stream) {
    return stream == 0 ? 4 : 0;
}

/* Writes the header; false where all elements are one value that it holds but for two bits. */
static bool choose_qparams(const float *x, uint32_t num, uint32_t bits, uint16_t head[2]) {
    float low = x[0], high = x[0];
    bool has_zero = false;
    for (uint32_t j = 0; j < num; j++) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
        has_zero |= x[j] == 0.0f;
    }
    dafi_minmax_head(low, high, bits, has_zero, head);
    return !dafi_is_constant(low, high);
}

static void encode_constant(uint32_t value, dafi_group_t *out, uint16_t head[2]) {
    head[0] = (uint16_t)(DAFI_HEAD_FLAG | ((value >> 2) & 0x7fffu));
    head[1] = (uint16_t)(DAFI_HEAD_FLAG | value >> 17);
    if (value & 2u) dafi_set_bit(out->plane[1], 0);
    if (value & 1u && out->num > 1) dafi_set_bit(out->plane[1], 1);
}

static float decode_constant(const uint16_t head[2], const dafi_group_t *in) {
    uint32_t value = (uint32_t)(head[1] & 0x7fffu) << 17 | (uint32_t)(head[0] & 0x7fffu) << 2;
    return dafi_float_of(value | (uint32_t)dafi_bit(in->plane[1], 0) << 1 | dafi_bit(in->plane[1], 1));
}

static void encode_codes(const dafi_group_job_t *job, const float *x, const uint16_t head[2], bool is_stochastic,
                         dafi_group_t *out) {
    float scale, low = dafi_minmax_grid(head, &scale), inverse = dafi_minmax_inverse(scale);
    for (uint32_t j = 0; j < out->num; j++) {
        uint32_t round = is_stochastic && x[j] != 0.0f ? dafi_random16(job->key, j) : 0x8000u;
        uint32_t code = dafi_minmax_code(x[j], low, inverse, job->bits, round);
        for (uint32_t s = 1; s <= job->bits; s++)
            if ((code >> (job->bits - s)) & 1u) dafi_set_bit(out->plane[s], j);
    }
}

static void encode(const dafi_group_job_t *job, const float *x, dafi_group_t *out, bool is_stochastic) {
    uint16_t head[2] = {DAFI_BF16_NAN, 0};
    if (dafi_is_escaped(x, out->num))
        dafi_escape_encode(x, job->bits, out, &head[1]);
    else if (choose_qparams(x, out->num, job->bits, head))
        encode_codes(job, x, head, is_stochastic, out);
    else
        encode_constant(dafi_bits_of(x[0]), out, head);
    memcpy(out->head[0], head, sizeof head);
}

static void encode_nearest(const dafi_group_job_t *job, const float *x, dafi_group_t *out) {
    encode(job, x, out, false);
}
static void encode_stochastic(const dafi_group_job_t *job, const float *x, dafi_group_t *out) {
    encode(job, x, out, true);
}

static void decode_codes(const dafi_group_job_t *job, const uint16_t head[2], const dafi_group_t *in, float *x) {
    float low, step;
    uint32_t zero = dafi_minmax_affine(head, job->bits, job->live, &low, &step);
    for (uint32_t j = 0; j < in->num; j++) {
        uint32_t code = 0;
        for (uint32_t s = 1; s <= job->live; s++) code = 2 * code + dafi_bit(in->plane[s], j);
        x[j] = code == zero ? 0.0f : low + step * (float)code;
    }
}

static void decode(const dafi_group_job_t *job, const dafi_group_t *in, float *x) {
    uint16_t head[2];
    memcpy(head, in->head[0], sizeof head);
    if (head[0] == DAFI_BF16_NAN)
        dafi_escape_decode(in, job->live, head[1], x);
    else if (dafi_minmax_is_constant(head))
        for (uint32_t j = 0; j < in->num; j++) x[j] = decode_constant(head, in);
    else
        decode_codes(job, head, in, x);
}

static const dafi_group_codec_t nearest = {DAFI_MINMAX, false, head_bytes, encode_nearest, decode};
static const dafi_group_codec_t stochastic = {DAFI_MINMAX_SR, false, head_bytes, encode_stochastic, decode};

const dafi_codec_t dafi_codec_minmax = {
    "minmax", 1, 8, dafi_grouped_plan, dafi_grouped_encode, dafi_grouped_decode, &nearest, dafi_group_gather,
};
const dafi_codec_t dafi_codec_minmax_sr = {
    "minmax-sr", 1, 8, dafi_grouped_plan, dafi_grouped_encode, dafi_grouped_decode, &stochastic, dafi_group_gather,
};
