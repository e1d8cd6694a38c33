/* libFuzzer target: a stash of any contents, page table and number of streams is decoded or refused, never overrun.
 *
 * The first bytes choose coder, page size and live streams; the rest fills the streams. A tag is valid unless the input
 * says otherwise, so that decoders are reached.
 */
#include <stdlib.h>
#include <string.h>
#include "planes.h"

static const char *const codecs[] = {"raw",       "int",       "bool",    "mask", "minmax",
                                     "minmax-sr", "meansplit", "support", "dual", "logprob"};
#define NUM_CODECS (sizeof codecs / sizeof *codecs)

typedef struct choice {
    uint8_t codec, bits, shape, dtype, cols, rows, page, live, spoil, isa;
    uint16_t numel;
} choice_t;

static uint8_t *fill(const uint8_t **data, size_t *size, uint8_t *page, size_t page_bytes) {
    size_t part = *size < page_bytes ? *size : page_bytes;
    memcpy(page, *data, part);
    *data += part, *size -= part;
    return page;
}

static void decode(const daf_coder_t *coder, const choice_t *choice, const uint8_t *data, size_t size) {
    daf_planes_t planes = {.page_bytes = choice->page % 2 ? 512 : 4096, .num_streams = coder->num_streams};
    uint8_t *pages[256] = {0}, *dst = malloc(coder->numel * 16 + 1), *zeros = calloc(coder->numel + 1, 16);
    uint32_t total = 0;
    for (uint32_t s = 0; s < coder->num_streams; s++) {
        planes.first_page[s] = total;
        total += (uint32_t)((coder->stream_bytes[s] + planes.page_bytes - 1) / planes.page_bytes);
    }
    planes.pages = pages;
    for (uint32_t i = 0; total < 256 && i < total; i++) pages[i] = aligned_alloc(64, planes.page_bytes);
    if (total < 256 && daf_encode(coder, zeros, &planes, 0) == DAF_OK) {
        uint8_t tag[DAF_UNIT_BYTES];
        uint64_t at = coder->stream_bytes[0] - DAF_UNIT_BYTES;
        uint8_t *place = pages[at / planes.page_bytes] + at % planes.page_bytes;
        memcpy(tag, place, sizeof tag);
        for (uint32_t i = 0; i < total; i++) fill(&data, &size, pages[i], planes.page_bytes);
        if (choice->spoil % 8) memcpy(place, tag, sizeof tag);
        planes.num_streams = choice->live % (DAF_MAX_STREAMS + 1);
        if (choice->spoil == 255) planes.first_page[1] = 0;
        daf_decode(coder, dst, &planes);
    }
    for (uint32_t i = 0; i < 256; i++) free(pages[i]);
    free(dst), free(zeros);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    choice_t choice;
    if (size < sizeof choice) return 0;
    memcpy(&choice, data, sizeof choice);
    const char *isa = daf_isa_at(choice.isa % 3);
    daf_set_isa(isa ? isa : "scalar");
    daf_coder_t coder = {.numel = choice.numel % 5000, .cols = choice.cols, .rows = choice.rows, .bits = choice.bits};
    coder.bits %= choice.codec % NUM_CODECS == 1 ? 65 : 9; /* int has up to 64 planes */
    coder.shape = choice.shape % 2, coder.dtype = choice.dtype % 11;
    if (coder.cols) coder.numel -= coder.numel % (coder.cols * (coder.rows ? coder.rows : 1));
    if (daf_coder_init(&coder, codecs[choice.codec % NUM_CODECS]) == DAF_OK)
        decode(&coder, &choice, data + sizeof choice, size - sizeof choice);
    return 0;
}
