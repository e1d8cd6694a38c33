/* Attention's forward over vectors of sixteen keys, then of sixteen columns of v: both products are the same loop, a
 * number of each row times a vector that all rows share. Tiles are as high and wide as the registers hold sums
 * (PRODUCT_ROWS and PRODUCT_VECS of simd_<isa>.h). Unlike the codecs, sets differ by rounding: multiplications are
 * fused. */
#include "recompute/attention.h"

#define MAX_BLOCK_KEYS 512
#define PACKED_FLOATS 16384 /* keys, and as many of v: together they stay in a core's second cache */
#define NO_MORE_THAN(a, b) ((a) < (b) ? (a) : (b))

/* A thread's workspace. Rows of keys and values are in whole vectors. */
typedef struct packed {
    float keys[PACKED_FLOATS] __attribute__((aligned(64)));                        /* transposed: [width][block_keys] */
    float values[PACKED_FLOATS] __attribute__((aligned(64)));                      /* [block_keys][padded] */
    float weights[PRODUCT_ROWS][MAX_BLOCK_KEYS + 16] __attribute__((aligned(64))); /* scores, then exp of them */
    float sums[PRODUCT_ROWS][DAF_MAX_HEAD_WIDTH] __attribute__((aligned(64)));
    float most[DAFI_QUERY_ROWS], denominator[DAFI_QUERY_ROWS]; /* the rows' state */
    uint32_t block_keys, padded;                               /* keys of a block, a multiple of 16; width likewise */
} packed_t;

/* e^x for x <= 0; exactly 0 below -87, NaN for NaN. The polynomial is that of Cephes' expf. */
FN vf exp_of(vf x) {
    const vf magic = v_set1(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    vf shifted = v_fma(x, v_set1(1.44269504f), magic), n = v_sub(shifted, magic);
    vf r = v_fma(n, v_set1(-0x1.62e4p-1f), x);
    r = v_fma(n, v_set1(-0x1.7f7d1cp-20f), r);
    vf p = v_fma(v_set1(1.9875691500e-4f), r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(0.5f));
    p = v_fma(v_mul(r, r), p, v_add(r, v_set1(1.0f)));
    vf power = i_as_float(i_sll(i_add(v_as_int(shifted), i_set1(127)), 23));
    return v_choose(v_gt(v_set1(-87.0f), x), v_set1(0.0f), v_mul(p, power));
}

/* to[r] = scale * sum over k < depth of rows[r][k] * shared[k], `num` vectors of it. */
FN void product_tile(const float *const *rows, const float *shared, size_t stride, uint32_t depth, uint32_t num,
                     float scale, float *to, size_t to_stride) {
    vf sum[PRODUCT_ROWS][PRODUCT_VECS], column[PRODUCT_VECS];
    UNROLL_WORDS(8)
    for (uint32_t r = 0; r < PRODUCT_ROWS; r++) UNROLL_WORDS(2)
    for (uint32_t j = 0; j < num; j++) sum[r][j] = v_set1(0.0f);
    for (uint32_t k = 0; k < depth; k++, shared += stride) {
        UNROLL_WORDS(2)
        for (uint32_t j = 0; j < num; j++) column[j] = v_load(shared + 16 * j);
        UNROLL_WORDS(8)
        for (uint32_t r = 0; r < PRODUCT_ROWS; r++) {
            vf number = v_set1(rows[r][k]);
            UNROLL_WORDS(2)
            for (uint32_t j = 0; j < num; j++) sum[r][j] = v_fma(number, column[j], sum[r][j]);
        }
    }
    UNROLL_WORDS(8)
    for (uint32_t r = 0; r < PRODUCT_ROWS; r++) UNROLL_WORDS(2)
    for (uint32_t j = 0; j < num; j++) v_store(to + r * to_stride + 16 * j, v_mul(sum[r][j], v_set1(scale)));
}

/* All of `cols`, in whole vectors. */
static void product(const float *const *rows, const float *shared, size_t stride, uint32_t depth, uint32_t cols,
                    float scale, float *to, size_t to_stride) {
    uint32_t c = 0;
    for (; c + 16 * PRODUCT_VECS <= cols; c += 16 * PRODUCT_VECS)
        product_tile(rows, shared + c, stride, depth, PRODUCT_VECS, scale, to + c, to_stride);
    for (; c < cols; c += 16) product_tile(rows, shared + c, stride, depth, 1, scale, to + c, to_stride);
}

FN uint32_t in_whole_vectors(uint32_t num) {
    return (num + 15) / 16 * 16;
}

/* Copies a row; what fills its last vector is 0. */
FN void copy_row(float *to, const float *from, uint32_t num) {
    uint32_t e = 0;
    for (; e + 16 <= num; e += 16) v_store(to + e, v_load(from + e));
    if (e < num) v_store(to + e, v_set1(0.0f));
    for (; e < num; e++) to[e] = from[e];
}

/* Up to sixteen keys, transposed; what fills their vectors is 0. */
FN void pack_keys(const float *k, int64_t stride, uint32_t num, uint32_t width, float *to, uint32_t to_stride) {
    for (uint32_t e = 0; e < width; e++, to += to_stride) {
        if (num < 16) v_store(to, v_set1(0.0f));
        for (uint32_t i = 0; i < num; i++) to[i] = k[i * stride + e];
    }
}

/* `num` keys from `first` on, and their values. Sixteen keys at a time, whose lines stay in the first cache. */
static void pack_block(const daf_attention_t *given, const dafi_attention_item_t *item, int64_t first, uint32_t num,
                       packed_t *packed) {
    uint32_t width = (uint32_t)given->width, j = 0;
    int64_t k_stride = given->k.stride[2], v_stride = given->v.stride[2];
    const float *k = item->k + first * k_stride, *v = item->v + first * v_stride;
    for (; j + 16 <= num; j += 16)
        pack_keys(k + j * k_stride, k_stride, 16, width, packed->keys + j, packed->block_keys);
    if (j < num) pack_keys(k + j * k_stride, k_stride, num - j, width, packed->keys + j, packed->block_keys);
    for (j = 0; j < num; j++) copy_row(packed->values + j * packed->padded, v + j * v_stride, width);
}

/* Turns a row's scores into weights, exp(score - most), of which those from `num` to `end` are 0. Updates the row's
 * state; returns what its sums so far are to be multiplied by. */
FN float weigh_row(float *weights, const float *mask, uint32_t num, uint32_t end, float *most, float *denominator) {
    uint32_t whole = num / 16 * 16;
    for (uint32_t j = 0; mask && j < whole; j += 16) v_store(weights + j, v_add(v_load(weights + j), v_load(mask + j)));
    for (uint32_t j = whole; mask && j < num; j++) weights[j] += mask[j];
    for (uint32_t j = num; j < end; j += 16) v_store(weights + j, v_set1(-INFINITY));
    vf largest = v_set1(*most), sum = v_set1(0.0f);
    for (uint32_t j = 0; j < end; j += 16) largest = v_max(largest, v_load(weights + j));
    float now = v_most(largest), base = now == -INFINITY ? 0.0f : now;
    for (uint32_t j = 0; j < end; j += 16) {
        vf weight = exp_of(v_sub(v_load(weights + j), v_set1(base)));
        v_store(weights + j, weight);
        sum = v_add(sum, weight);
    }
    float rescale = *denominator == 0.0f ? 0.0f : expf(*most - base);
    *most = now;
    *denominator = *denominator * rescale + v_sum(sum);
    return rescale;
}

/* A tile of query rows, on its way through a block of keys. */
typedef struct query_tile {
    int64_t row;
    uint32_t num_rows, num_keys; /* keys of the block that its last row sees */
    bool is_last;                /* block that it sees */
} query_tile_t;

/* out = (out * rescale + sums) * factor; the first block has nothing to rescale. */
FN void add_row(float *out, const float *sums, uint32_t num, bool is_first, float rescale, float factor) {
    uint32_t e = 0;
    for (; e + 16 <= num; e += 16) {
        vf sum = v_load(sums + e);
        if (!is_first) sum = v_fma(v_load(out + e), v_set1(rescale), sum);
        v_store(out + e, v_mul(sum, v_set1(factor)));
    }
    for (; e < num; e++) out[e] = (is_first ? sums[e] : out[e] * rescale + sums[e]) * factor;
}

static void attend_tile(const dafi_attention_job_t *job, const dafi_attention_item_t *item, int64_t first_key,
                        const query_tile_t *tile, packed_t *packed) {
    const daf_attention_t *given = job->given;
    const float *rows[PRODUCT_ROWS], *weights[PRODUCT_ROWS];
    float rescale[PRODUCT_ROWS];
    uint32_t end = in_whole_vectors(tile->num_keys), width = (uint32_t)given->width;
    for (uint32_t r = 0; r < PRODUCT_ROWS; r++) {
        rows[r] = item->q + (tile->row + NO_MORE_THAN(r, tile->num_rows - 1)) * given->q.stride[2];
        weights[r] = packed->weights[r];
    }
    product(rows, packed->keys, packed->block_keys, width, end, given->scale, packed->weights[0], MAX_BLOCK_KEYS + 16);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        int64_t row = tile->row + r, seen = given->is_causal ? row + 1 - first_key : tile->num_keys;
        uint32_t at = (uint32_t)(row - item->first), num = seen < 0 ? 0 : (uint32_t)NO_MORE_THAN(seen, tile->num_keys);
        const float *mask = item->mask ? item->mask + row * given->mask.stride[2] + first_key : NULL;
        rescale[r] = weigh_row(packed->weights[r], mask, num, end, &packed->most[at], &packed->denominator[at]);
    }
    product(weights, packed->values, packed->padded, tile->num_keys, packed->padded, 1.0f, packed->sums[0],
            DAF_MAX_HEAD_WIDTH);
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        int64_t row = tile->row + r, at = row - item->first;
        float denominator = packed->denominator[at], inverse = denominator == 0.0f ? 0.0f : 1.0f / denominator;
        add_row(item->out + row * job->out_stride[2], packed->sums[r], width, !first_key, rescale[r],
                tile->is_last ? inverse : 1.0f);
        if (tile->is_last)
            item->lse[row * given->heads] = denominator == 0.0f ? 0.0f : packed->most[at] + logf(denominator);
    }
}

static void attend(const dafi_attention_job_t *job, const dafi_attention_item_t *item) {
    const daf_attention_t *given = job->given;
    packed_t packed;
    packed.padded = in_whole_vectors((uint32_t)given->width);
    packed.block_keys = NO_MORE_THAN(PACKED_FLOATS / packed.padded / 16 * 16, MAX_BLOCK_KEYS);
    for (int64_t r = 0; r < item->num; r++) packed.most[r] = -INFINITY, packed.denominator[r] = 0.0f;
    int64_t end = item->first + item->num, num_keys = given->is_causal ? NO_MORE_THAN(end, given->keys) : given->keys;
    for (int64_t first = 0; first < num_keys; first += packed.block_keys) {
        uint32_t in_block = (uint32_t)NO_MORE_THAN((int64_t)packed.block_keys, num_keys - first);
        pack_block(given, item, first, in_block, &packed);
        for (int64_t row = item->first; row < end; row += PRODUCT_ROWS) {
            query_tile_t tile = {.row = row, .num_rows = (uint32_t)NO_MORE_THAN((int64_t)PRODUCT_ROWS, end - row)};
            int64_t seen = (given->is_causal ? NO_MORE_THAN(row + tile.num_rows, num_keys) : num_keys) - first;
            if (seen <= 0) continue;
            tile.num_keys = (uint32_t)NO_MORE_THAN(seen, in_block);
            tile.is_last = seen <= in_block;
            attend_tile(job, item, first, &tile, &packed);
        }
    }
}
