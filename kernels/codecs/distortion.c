/* The error of a codec with every number of planes, from a few groups of a tensor.
 *
 * The groups are gathered as float32 and coded as run groups by the fast path, whatever their shape: the order of sums
 * differs from that of column groups, the error does not. A group cut short is repeated up to its full length and
 * counts by its true one.
 */
#include "numbers.h"
#include "groups/span.h"

/* Some groups, their streams, and what comes back. */
typedef struct sample {
    uint32_t num_groups;
    uint32_t num[DAFI_SPAN_GROUPS]; /* true lengths */
    float x[DAFI_SPAN_GROUPS * DAF_GROUP] __attribute__((aligned(64)));
    float back[DAFI_SPAN_GROUPS * DAF_GROUP] __attribute__((aligned(64)));
    uint8_t plane[DAFI_MAX_PLANES + 1][DAFI_SPAN_GROUPS * DAF_UNIT_BYTES];
    uint8_t head[DAFI_MAX_PLANES + 1][DAFI_SPAN_GROUPS * 8];
} sample_t;

/* The group to take as the i-th of num. Column groups are taken sixteen neighbours at a time: they share cache lines.
 */
static uint64_t pick(const daf_coder_t *coder, uint64_t i, uint64_t num) {
    uint64_t tiles_across = coder->cols / DAFI_TILE_COLS, num_tiles = num / DAFI_TILE_COLS;
    if (coder->shape == DAF_RUN || num == coder->num_groups || !tiles_across || !num_tiles)
        return coder->num_groups / num * i;
    uint64_t all_tiles = coder->num_groups / coder->cols * tiles_across;
    uint64_t tile = i / DAFI_TILE_COLS % num_tiles * (all_tiles / num_tiles);
    return tile / tiles_across * coder->cols + tile % tiles_across * DAFI_TILE_COLS + i % DAFI_TILE_COLS;
}

static void gather(const daf_coder_t *coder, const void *src, uint64_t group, sample_t *sample) {
    uint32_t g = sample->num_groups++;
    float *x = sample->x + g * DAF_GROUP;
    dafi_codec_of(coder)->gather(coder, src, group, x, &sample->num[g]);
    for (uint32_t j = sample->num[g]; j < DAF_GROUP; j++) x[j] = x[j - sample->num[g]];
}

static dafi_span_t span_of(const daf_coder_t *coder, sample_t *sample) {
    dafi_span_t span = {
        .src = (const uint8_t *)sample->x,
        .dst = (uint8_t *)sample->back,
        .numel = (uint64_t)sample->num_groups * DAF_GROUP,
        .codec = dafi_codec_of(coder)->group,
        .job = dafi_job_of(coder, coder->bits),
        .dtype = DAF_FLOAT32,
    };
    span.job.lanes = 64;
    for (uint32_t s = 0; s <= coder->bits; s++) {
        span.plane[s] = s || span.codec->has_support ? sample->plane[s] : NULL;
        span.head[s] = sample->head[s];
    }
    return span;
}

/* The sum of what is left of x without back's, or of x itself. Elements that are not finite have no error. */
static double squares(const float *x, const float *back) {
    float partial[16] = {0}, sum = 0.0f;
    for (uint32_t j = 0; j < DAF_GROUP; j += 16) {
        for (uint32_t lane = 0; lane < 16; lane++) {
            float d = back ? x[j + lane] - back[j + lane] : x[j + lane];
            partial[lane] += dafi_is_regular(d) ? d * d : 0.0f;
        }
    }
    for (uint32_t lane = 0; lane < 16; lane++) sum += partial[lane];
    return sum;
}

static double weighed(const sample_t *sample, bool is_error) {
    double sum = 0.0;
    for (uint32_t g = 0; g < sample->num_groups; g++) {
        const float *x = sample->x + g * DAF_GROUP, *back = sample->back + g * DAF_GROUP;
        sum += squares(x, is_error ? back : NULL) * sample->num[g] / DAF_GROUP;
    }
    return sum;
}

static void measure(const daf_coder_t *coder, sample_t *sample, double *errors, double *energy) {
    dafi_span_t span = span_of(coder, sample);
    dafi_span_encode_groups(&span);
    for (span.job.live = 0; span.job.live <= coder->bits; span.job.live++) {
        dafi_span_decode_groups(&span);
        errors[span.job.live] += weighed(sample, true);
    }
    *energy += weighed(sample, false);
}

daf_status_t daf_distortion(const daf_coder_t *coder, const void *src, uint32_t max_groups, double *mse,
                            double *mean_square) {
    uint64_t count = 0, num = coder->num_groups < max_groups ? coder->num_groups : max_groups;
    sample_t sample;
    *mean_square = 0.0;
    for (uint32_t k = 0; k < coder->num_streams; k++) mse[k] = 0.0;
    if (!dafi_codec_of(coder)->group) return DAF_OK;
    for (uint64_t i = 0; i < num; i += sample.num_groups) {
        sample.num_groups = 0;
        while (sample.num_groups < DAFI_SPAN_GROUPS && i + sample.num_groups < num)
            gather(coder, src, pick(coder, i + sample.num_groups, num), &sample);
        measure(coder, &sample, mse, mean_square);
        for (uint32_t g = 0; g < sample.num_groups; g++) count += sample.num[g];
    }
    for (uint32_t k = 0; count && k <= coder->bits; k++) mse[k] /= (double)count;
    if (count) *mean_square /= (double)count;
    return DAF_OK;
}
