/* The codecs, and the public functions: they check what they are given, then call the codec. */
#include "codec.h"
#include "numbers.h"

#define ENTRY(name) &dafi_codec_##name,
static const dafi_codec_t *const codecs[] = {DAFI_CODECS(ENTRY)};
#undef ENTRY
#define NUM_CODECS (sizeof codecs / sizeof *codecs)
#define MAX_NUMEL ((uint64_t)1 << 48)

const dafi_codec_t *dafi_codec_of(const daf_coder_t *coder) {
    return codecs[coder->codec];
}

uint32_t dafi_codec_index(const dafi_codec_t *codec) {
    uint32_t index = 0;
    while (codecs[index] != codec) index++;
    return index;
}

const char *daf_codec_at(uint32_t index) {
    return index < NUM_CODECS ? codecs[index]->name : NULL;
}

daf_status_t daf_coder_init(daf_coder_t *coder, const char *name) {
    uint32_t index = 0;
    while (index < NUM_CODECS && strcmp(codecs[index]->name, name) != 0) index++;
    if (index == NUM_CODECS || coder->dtype > DAF_BYTES16 || coder->shape > DAF_COLUMN || coder->numel > MAX_NUMEL)
        return DAF_BAD_SPEC;
    if (coder->bits < codecs[index]->min_bits || coder->bits > codecs[index]->max_bits) return DAF_BAD_SPEC;
    coder->codec = index;
    daf_status_t status = codecs[index]->plan(coder);
    if (status == DAF_OK) coder->stream_bytes[0] += DAF_UNIT_BYTES; /* the tag */
    return status;
}

/* The tag: a magic word and all that decides the layout. */
typedef struct tag {
    uint32_t magic;
    uint8_t codec, bits, shape, dtype;
    uint64_t numel, cols, rows;
} tag_t;
_Static_assert(sizeof(tag_t) == DAF_UNIT_BYTES, "a tag is one unit");

static tag_t tag_of(const daf_coder_t *c) {
    return (tag_t){0x31464144u,       (uint8_t)c->codec, (uint8_t)c->bits, (uint8_t)c->shape,
                   (uint8_t)c->dtype, c->numel,          c->cols,          c->rows};
}

static uint8_t *tag_at(const daf_coder_t *coder, const daf_planes_t *planes) {
    return dafi_at(planes, 0, coder->stream_bytes[0] - DAF_UNIT_BYTES);
}

/* Page size, number of streams, and that no stream's pages reach into the next one's. */
static bool is_sound(const daf_coder_t *coder, const daf_planes_t *planes) {
    if (!planes->pages || planes->num_streams < 1 || planes->num_streams > coder->num_streams) return false;
    if (planes->page_bytes < DAF_MIN_PAGE_BYTES || (planes->page_bytes & (planes->page_bytes - 1))) return false;
    for (uint32_t s = 0; s < planes->num_streams; s++) {
        uint64_t num_pages = dafi_div_up(coder->stream_bytes[s], planes->page_bytes);
        if (s + 1 < planes->num_streams && planes->first_page[s + 1] < planes->first_page[s] + num_pages) return false;
        for (uint64_t i = 0; i < num_pages; i++)
            if (!planes->pages[planes->first_page[s] + i]) return false;
    }
    return true;
}

daf_status_t daf_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    if (!is_sound(coder, planes) || planes->num_streams != coder->num_streams) return DAF_BAD_PLANES;
    daf_status_t status = dafi_codec_of(coder)->encode(coder, src, planes, seed);
    tag_t tag = tag_of(coder);
    if (status != DAF_OK) tag.magic = 0; /* half-written: never to be decoded */
    memcpy(tag_at(coder, planes), &tag, sizeof tag);
    return status;
}

daf_status_t daf_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    if (!is_sound(coder, planes)) return DAF_BAD_PLANES;
    tag_t tag = tag_of(coder);
    if (memcmp(tag_at(coder, planes), &tag, sizeof tag) != 0) return DAF_FOREIGN;
    return dafi_codec_of(coder)->decode(coder, dst, planes);
}
