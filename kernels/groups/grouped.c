/* Codecs that work group by group, over a whole tensor: geometry, and the way to run_groups.c or column_groups.c. */
#include <float.h>
#include "numbers.h"
#include "groups/span.h"

static bool has_plane(const daf_coder_t *coder, uint32_t stream) {
    return stream > 0 || dafi_codec_of(coder)->group->has_support;
}

daf_status_t dafi_grouped_plan(daf_coder_t *coder) {
    const dafi_group_codec_t *codec = dafi_codec_of(coder)->group;
    uint64_t num_units = dafi_div_up(coder->numel, DAF_GROUP);
    if (coder->dtype > DAF_FLOAT16) return DAF_BAD_SPEC;
    coder->num_groups = num_units;
    if (coder->shape == DAF_COLUMN) {
        if (coder->cols == 0 || coder->numel % coder->cols) return DAF_BAD_SPEC;
        coder->num_groups = dafi_div_up(coder->numel / coder->cols, DAF_GROUP) * coder->cols;
    }
    coder->num_streams = coder->bits + 1;
    for (uint32_t s = 0; s < coder->num_streams; s++) {
        coder->head_bytes[s] = codec->head_bytes(s);
        coder->head_offset[s] = has_plane(coder, s) ? num_units * DAF_UNIT_BYTES : 0;
        coder->stream_bytes[s] = coder->head_offset[s] + dafi_whole_units(coder->num_groups * coder->head_bytes[s]);
    }
    return DAF_OK;
}

/* Above this a tensor does not stay in a core's caches anyway, so stores go past them. */
#define STREAMING_BYTES ((uint64_t)4 << 20)

bool dafi_is_big(const daf_coder_t *coder) {
    return coder->numel * dafi_itemsize(coder->dtype) >= STREAMING_BYTES;
}

bool dafi_is_streaming(const daf_coder_t *coder, const void *dst) {
    return coder->dtype == DAF_FLOAT32 && dafi_is_big(coder) && (uintptr_t)dst % DAFI_STREAMING_ALIGN == 0;
}

dafi_group_job_t dafi_job_of(const daf_coder_t *coder, uint32_t live) {
    float least = coder->dtype == DAF_FLOAT16 ? DAFI_F16_TINY : FLT_MIN;
    return (dafi_group_job_t){coder->bits, live, coder->shape == DAF_COLUMN ? 1 : 64, 0, least};
}

void dafi_group_gather(const daf_coder_t *coder, const void *src, uint64_t group, float *x, uint32_t *num) {
    uint64_t first = group * DAF_GROUP, stride = 1, left = coder->numel - first;
    if (coder->shape == DAF_COLUMN) {
        uint64_t row = group / coder->cols * DAF_GROUP;
        first = row * coder->cols + group % coder->cols, stride = coder->cols;
        left = coder->numel / coder->cols - row;
    }
    *num = left < DAF_GROUP ? (uint32_t)left : DAF_GROUP;
    for (uint32_t j = 0; j < *num; j++) x[j] = dafi_load(coder->dtype, src, first + j * stride);
}

/* What no group writes: bits beyond numel in the last unit, headers beyond the last group in their last unit. */
void dafi_clear_tails(const daf_coder_t *coder, const daf_planes_t *planes) {
    for (uint32_t s = 0; s < coder->num_streams; s++) {
        if (has_plane(coder, s) && coder->numel % DAF_GROUP)
            memset(dafi_at(planes, s, coder->head_offset[s] - DAF_UNIT_BYTES), 0, DAF_UNIT_BYTES);
        uint64_t used = coder->num_groups * coder->head_bytes[s];
        if (used % DAF_UNIT_BYTES)
            memset(dafi_at(planes, s, coder->head_offset[s] + used), 0, DAF_UNIT_BYTES - used % DAF_UNIT_BYTES);
    }
}

daf_status_t dafi_grouped_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    dafi_clear_tails(coder, planes);
    if (coder->shape == DAF_COLUMN)
        dafi_column_encode(coder, src, planes, seed);
    else
        dafi_run_encode(coder, src, planes, seed);
    return DAF_OK;
}

daf_status_t dafi_grouped_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    if (coder->shape == DAF_COLUMN)
        dafi_column_decode(coder, dst, planes);
    else
        dafi_run_decode(coder, dst, planes);
    return DAF_OK;
}
