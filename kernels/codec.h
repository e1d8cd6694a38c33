/* What a codec is, between the files of this folder.
 *
 * A codec is one file with its reference and one word in DAFI_CODECS. Most codecs work group by group: they fill
 * `dafi_group_codec_t` and take dafi_grouped_* for the rest; the others bring whole-tensor functions.
 */
#ifndef DAF_CODEC_H
#define DAF_CODEC_H
#include <stdbool.h>
#include <string.h>
#include "planes.h"

#define DAFI_MAX_PLANES 8

/* One group as it is stored, taken out of its streams. Bits beyond num are zero. */
typedef struct dafi_group {
    uint64_t plane[DAFI_MAX_PLANES + 1][4]; /* [0]: the support plane; [s]: the plane of stream s. In group order */
    uint8_t head[DAFI_MAX_PLANES + 1][8];   /* header bytes of stream s */
    uint32_t num;                           /* elements, 1..256 */
} dafi_group_t;

typedef struct dafi_group_job {
    uint32_t bits;  /* planes that the encoder writes */
    uint32_t live;  /* planes that the decoder has: 0..bits */
    uint32_t lanes; /* partial sums: element j goes to sum j % lanes (run: 64, column: 1) */
    uint32_t key;   /* of this group's random numbers */
    float least;    /* smallest magnitude that the element type can hold: what support never goes below */
} dafi_group_job_t;

typedef struct dafi_group_codec {
    int kernel;                              /* its fast path (span.h), DAFI_NO_KERNEL: none */
    bool has_support;                        /* stream 0 has a plane of its own */
    uint32_t (*head_bytes)(uint32_t stream); /* of one group: 0 or a power of two up to 8 */
    void (*encode)(const dafi_group_job_t *job, const float *x, dafi_group_t *out);
    void (*decode)(const dafi_group_job_t *job, const dafi_group_t *in, float *x);
} dafi_group_codec_t;

typedef struct dafi_codec {
    const char *name;
    uint32_t min_bits, max_bits;
    daf_status_t (*plan)(daf_coder_t *coder); /* geometry; the spec's ranges are checked already */
    daf_status_t (*encode)(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);
    daf_status_t (*decode)(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);
    const dafi_group_codec_t *group; /* NULL: not group by group */
    /* The elements that `group` codes, as float32, for their error. */
    void (*gather)(const daf_coder_t *coder, const void *src, uint64_t group, float *x, uint32_t *num);
} dafi_codec_t;

/* The registry. A codec's place in it is part of its tag: new ones come last. */
#define DAFI_CODECS(each)                                                                                              \
    each(raw) each(int) each(bool) each(minmax) each(minmax_sr) each(meansplit) each(support) each(dual) each(mask)    \
        each(logprob)

#define DAFI_DECLARE(name) extern const dafi_codec_t dafi_codec_##name;
DAFI_CODECS(DAFI_DECLARE)
#undef DAFI_DECLARE

extern const dafi_group_codec_t dafi_meansplit_groups;

const dafi_codec_t *dafi_codec_of(const daf_coder_t *coder);
uint32_t dafi_codec_index(const dafi_codec_t *codec);

/* grouped.c: a codec that works group by group, over a whole tensor. */
daf_status_t dafi_grouped_plan(daf_coder_t *coder);
void dafi_clear_tails(const daf_coder_t *coder, const daf_planes_t *planes);
daf_status_t dafi_grouped_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed);
daf_status_t dafi_grouped_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes);
dafi_group_job_t dafi_job_of(const daf_coder_t *coder, uint32_t live);
void dafi_group_gather(const daf_coder_t *coder, const void *src, uint64_t group, float *x, uint32_t *num);

/* escape.c: groups with elements that are not finite. */
bool dafi_is_escaped(const float *x, uint32_t num);
void dafi_escape_encode(const float *x, uint32_t bits, dafi_group_t *out, uint16_t *mean);
void dafi_escape_decode(const dafi_group_t *in, uint32_t live, uint16_t mean, float *x);

/* Address of byte `offset` of a stream. */
static inline uint8_t *dafi_at(const daf_planes_t *planes, uint32_t stream, uint64_t offset) {
    uint32_t shift = (uint32_t)__builtin_ctz(planes->page_bytes);
    return planes->pages[planes->first_page[stream] + (offset >> shift)] + (offset & (planes->page_bytes - 1));
}

/* Copies bytes of a stream that may lie in several pages. */
static inline void dafi_copy(const daf_planes_t *planes, uint32_t stream, uint64_t offset, void *bytes, uint64_t size,
                             bool to_planes) {
    for (uint64_t done = 0, part; done < size; done += part) {
        uint8_t *at = dafi_at(planes, stream, offset + done);
        uint64_t room = planes->page_bytes - ((offset + done) & (planes->page_bytes - 1));
        part = size - done < room ? size - done : room;
        if (to_planes)
            memcpy(at, (const uint8_t *)bytes + done, part);
        else
            memcpy((uint8_t *)bytes + done, at, part);
    }
}

static inline uint64_t dafi_div_up(uint64_t value, uint64_t by) {
    return value / by + (value % by != 0);
}
static inline uint64_t dafi_whole_units(uint64_t bytes) {
    return dafi_div_up(bytes, DAF_UNIT_BYTES) * DAF_UNIT_BYTES;
}

static inline bool dafi_bit(const uint64_t *words, uint32_t index) {
    return (words[index / 64] >> (index % 64)) & 1u;
}
static inline void dafi_set_bit(uint64_t *words, uint32_t index) {
    words[index / 64] |= (uint64_t)1 << (index % 64);
}
#endif
