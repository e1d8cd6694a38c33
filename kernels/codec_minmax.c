/* Min/max affine: q = (x - low) / scale, value = low + scale * q. To the nearest, or stochastic and so unbiased.
 *
 * Header, stream 0:  | low bf16, rounded down | scale bf16, rounded up |
 * With k of the b planes dropped a code stands for 2^k codes, and decodes to their centre.
 * Error: nearest scale * 2^k / 2; stochastic scale at k = 0, else scale * (2^k + 1) / 2.
 */
#include "span.h"
#include "minmax.h"

static uint32_t head_bytes(uint32_t stream) {
    return stream == 0 ? 4 : 0;
}

static void choose_qparams(const float *x, uint32_t num, uint32_t bits, uint16_t head[2]) {
    float low = x[0], high = x[0];
    for (uint32_t j = 1; j < num; j++) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    dafi_minmax_head(low, high, bits, head);
}

static void encode(const dafi_group_job_t *job, const float *x, dafi_group_t *out, bool is_stochastic) {
    uint16_t head[2] = {DAFI_BF16_NAN, 0};
    if (dafi_is_escaped(x, out->num)) {
        dafi_escape_encode(x, job->bits, out, &head[1]);
    } else {
        choose_qparams(x, out->num, job->bits, head);
        float low = dafi_from_bf16(head[0]), inverse = dafi_minmax_inverse(dafi_from_bf16(head[1]));
        int32_t most = ((1 << job->bits) - 1) << 16;
        for (uint32_t j = 0; j < out->num; j++) {
            int32_t fixed = (int32_t)((x[j] - low) * inverse); /* 16 bits of fraction */
            fixed = fixed > most ? most : fixed;
            uint32_t round = is_stochastic ? dafi_random16(job->key, j) : 0x8000u;
            uint32_t code = ((uint32_t)fixed + round) >> 16;
            for (uint32_t s = 1; s <= job->bits; s++)
                if ((code >> (job->bits - s)) & 1u) dafi_set_bit(out->plane[s], j);
        }
    }
    memcpy(out->head[0], head, sizeof head);
}

static void encode_nearest(const dafi_group_job_t *job, const float *x, dafi_group_t *out) {
    encode(job, x, out, false);
}
static void encode_stochastic(const dafi_group_job_t *job, const float *x, dafi_group_t *out) {
    encode(job, x, out, true);
}

static void decode(const dafi_group_job_t *job, const dafi_group_t *in, float *x) {
    uint16_t head[2];
    memcpy(head, in->head[0], sizeof head);
    if (isnan(dafi_from_bf16(head[0]))) {
        dafi_escape_decode(in, job->live, head[1], x);
        return;
    }
    float low, step;
    dafi_minmax_affine(head, job->bits, job->live, &low, &step);
    for (uint32_t j = 0; j < in->num; j++) {
        uint32_t code = 0;
        for (uint32_t s = 1; s <= job->live; s++) code = 2 * code + dafi_bit(in->plane[s], j);
        x[j] = low + step * (float)code;
    }
}

static const dafi_group_codec_t nearest = {DAFI_MINMAX, false, head_bytes, encode_nearest, decode};
static const dafi_group_codec_t stochastic = {DAFI_MINMAX_SR, false, head_bytes, encode_stochastic, decode};

const dafi_codec_t dafi_codec_minmax = {
    "minmax", 1, 8, dafi_grouped_plan, dafi_grouped_encode, dafi_grouped_decode, &nearest, dafi_group_gather,
};
const dafi_codec_t dafi_codec_minmax_sr = {
    "minmax-sr", 1, 8, dafi_grouped_plan, dafi_grouped_encode, dafi_grouped_decode, &stochastic, dafi_group_gather,
};
