/* Codecs that work group by group, over a whole tensor: where a group's elements, bits and headers lie. */
#include <float.h>
#include "codec.h"
#include "numbers.h"

static uint32_t num_planes_in(const daf_coder_t *coder, uint32_t stream) {
    return stream > 0 || dafi_codec_of(coder)->group->has_support;
}

daf_status dafi_grouped_plan(daf_coder_t *coder) {
    const dafi_group_codec_t *codec = dafi_codec_of(coder)->group;
    if (coder->dtype > DAF_FLOAT16) return DAF_BAD_SPEC;
    if (coder->shape == DAF_COLUMN) {
        if (coder->cols == 0 || coder->numel % coder->cols) return DAF_BAD_SPEC;
        coder->num_groups = dafi_div_up(coder->numel / coder->cols, DAF_GROUP) * coder->cols;
    } else {
        coder->num_groups = dafi_div_up(coder->numel, DAF_GROUP);
    }
    coder->num_streams = coder->bits + 1;
    for (uint32_t s = 0; s < coder->num_streams; s++) {
        coder->head_bytes[s] = codec->head_bytes(s);
        coder->head_offset[s] = num_planes_in(coder, s) * dafi_div_up(coder->numel, DAF_GROUP) * DAF_UNIT_BYTES;
        coder->stream_bytes[s] = coder->head_offset[s] + dafi_whole_units(coder->num_groups * coder->head_bytes[s]);
    }
    return DAF_OK;
}

/* Where the elements of a group are: first, first + stride, ... */
typedef struct place {
    uint64_t first, stride;
    uint32_t num;
} place_t;

static place_t place_of(const daf_coder_t *coder, uint64_t group) {
    place_t place = {group * DAF_GROUP, 1, 0};
    uint64_t left = coder->numel - place.first;
    if (coder->shape == DAF_COLUMN) {
        uint64_t row = group / coder->cols * DAF_GROUP;
        place = (place_t){row * coder->cols + group % coder->cols, coder->cols, 0};
        left = coder->numel / coder->cols - row;
    }
    place.num = left < DAF_GROUP ? (uint32_t)left : DAF_GROUP;
    return place;
}

void dafi_group_gather(const daf_coder_t *coder, const void *src, uint64_t group, float *x, uint32_t *num) {
    place_t place = place_of(coder, group);
    *num = place.num;
    for (uint32_t j = 0; j < place.num; j++) x[j] = dafi_load(coder->dtype, src, place.first + j * place.stride);
}

static void put_bits(const place_t *place, const uint64_t *words, const daf_planes_t *planes, uint32_t s) {
    if (place->stride == 1) { /* a whole unit: the bits beyond num are zero */
        memcpy(dafi_at(planes, s, place->first / 8), words, DAF_UNIT_BYTES);
        return;
    }
    for (uint32_t j = 0; j < place->num; j++) {
        uint64_t index = place->first + j * place->stride;
        uint8_t *byte = dafi_at(planes, s, index / 8), mask = (uint8_t)(1u << (index % 8));
        *byte = (uint8_t)(dafi_bit(words, j) ? *byte | mask : *byte & ~mask);
    }
}

static void get_bits(const place_t *place, uint64_t *words, const daf_planes_t *planes, uint32_t s) {
    if (place->stride == 1) {
        memcpy(words, dafi_at(planes, s, place->first / 8), DAF_UNIT_BYTES);
        return;
    }
    memset(words, 0, DAF_UNIT_BYTES);
    for (uint32_t j = 0; j < place->num; j++) {
        uint64_t index = place->first + j * place->stride;
        if ((*dafi_at(planes, s, index / 8) >> (index % 8)) & 1u) dafi_set_bit(words, j);
    }
}

static uint8_t *head_at(const daf_coder_t *coder, const daf_planes_t *planes, uint32_t s, uint64_t group) {
    return dafi_at(planes, s, coder->head_offset[s] + group * coder->head_bytes[s]);
}

dafi_group_job_t dafi_job_of(const daf_coder_t *coder, uint32_t live) {
    float least = coder->dtype == DAF_FLOAT16 ? DAFI_F16_TINY : FLT_MIN;
    return (dafi_group_job_t){coder->bits, live, coder->shape == DAF_COLUMN ? 1 : 64, 0, least};
}

static void encode_group(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed,
                         uint64_t group) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    dafi_group_job_t job = dafi_job_of(coder, coder->bits);
    place_t place = place_of(coder, group);
    job.key = dafi_group_key(seed, group);
    dafi_group_gather(coder, src, group, x, &stored.num);
    dafi_codec_of(coder)->group->encode(&job, x, &stored);
    for (uint32_t s = 0; s <= coder->bits; s++) {
        if (num_planes_in(coder, s)) put_bits(&place, stored.plane[s], planes, s);
        if (coder->head_bytes[s]) memcpy(head_at(coder, planes, s, group), stored.head[s], coder->head_bytes[s]);
    }
}

static void decode_group(const daf_coder_t *coder, void *dst, const daf_planes_t *planes, uint64_t group) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    dafi_group_job_t job = dafi_job_of(coder, planes->num_streams - 1);
    place_t place = place_of(coder, group);
    stored.num = place.num;
    for (uint32_t s = 0; s < planes->num_streams; s++) {
        if (num_planes_in(coder, s)) get_bits(&place, stored.plane[s], planes, s);
        if (coder->head_bytes[s]) memcpy(stored.head[s], head_at(coder, planes, s, group), coder->head_bytes[s]);
    }
    dafi_codec_of(coder)->group->decode(&job, &stored, x);
    for (uint32_t j = 0; j < place.num; j++) dafi_store(coder->dtype, dst, place.first + j * place.stride, x[j]);
}

/* What no group writes: bits beyond numel in the last unit, headers beyond the last group in their last unit. */
static void clear_tails(const daf_coder_t *coder, const daf_planes_t *planes) {
    for (uint32_t s = 0; s < coder->num_streams; s++) {
        if (num_planes_in(coder, s) && coder->numel % DAF_GROUP)
            memset(dafi_at(planes, s, coder->head_offset[s] - DAF_UNIT_BYTES), 0, DAF_UNIT_BYTES);
        uint64_t used = coder->num_groups * coder->head_bytes[s];
        if (used % DAF_UNIT_BYTES)
            memset(dafi_at(planes, s, coder->head_offset[s] + used), 0, DAF_UNIT_BYTES - used % DAF_UNIT_BYTES);
    }
}

daf_status dafi_grouped_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    clear_tails(coder, planes);
    for (uint64_t group = 0; group < coder->num_groups; group++) encode_group(coder, src, planes, seed, group);
    return DAF_OK;
}

daf_status dafi_grouped_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    for (uint64_t group = 0; group < coder->num_groups; group++) decode_group(coder, dst, planes, group);
    return DAF_OK;
}
