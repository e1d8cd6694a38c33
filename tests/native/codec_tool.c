/* Runs codecs on cases from stdin and writes all that they make to stdout, so that another build of the same C (another
 * processor under an emulator, sanitizers) can be compared byte by byte.
 *
 * in:  case header, source bytes; repeated
 * out: status; then the streams; then the decoded elements with all planes, with one dropped, ... with stream 0 alone
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "planes.h"

typedef struct header {
    char codec[16], isa[16];
    uint32_t bits, shape, dtype, page_bytes;
    uint64_t numel, cols, rows, seed, src_bytes;
} header_t;

/* Pages in reverse order and each an allocation of its own: a read beyond a page is a read beyond a heap block. */
static daf_planes_t make_planes(const daf_coder_t *coder, uint32_t page_bytes) {
    daf_planes_t planes = {NULL, page_bytes, coder->num_streams, {0}};
    uint32_t total = 0;
    for (uint32_t s = 0; s < coder->num_streams; s++) {
        planes.first_page[s] = total;
        total += (uint32_t)((coder->stream_bytes[s] + page_bytes - 1) / page_bytes);
    }
    uint8_t **pages = malloc((total + 1) * sizeof *pages);
    pages[total] = NULL; /* where the last stream ends */
    for (uint32_t i = total; i-- > 0;) {
        pages[i] = aligned_alloc(64, page_bytes);
        memset(pages[i], 0xa5, page_bytes); /* what is not written shows */
    }
    planes.pages = pages;
    return planes;
}

static void free_planes(daf_planes_t *planes) {
    for (uint32_t i = 0; planes->pages[i]; i++) free(planes->pages[i]);
    free((void *)planes->pages);
}

static void write_stream(const daf_coder_t *coder, const daf_planes_t *planes, uint32_t s) {
    for (uint64_t offset = 0; offset < coder->stream_bytes[s]; offset += planes->page_bytes) {
        uint64_t left = coder->stream_bytes[s] - offset;
        size_t part = left < planes->page_bytes ? (size_t)left : planes->page_bytes;
        fwrite(planes->pages[planes->first_page[s] + offset / planes->page_bytes], 1, part, stdout);
    }
}

static uint32_t run_case(const header_t *header, const uint8_t *src) {
    daf_coder_t coder = {.numel = header->numel, .cols = header->cols, .rows = header->rows, .bits = header->bits};
    coder.shape = header->shape, coder.dtype = header->dtype;
    uint32_t status = daf_set_isa(header->isa);
    if (status == DAF_OK) status = daf_coder_init(&coder, header->codec);
    if (status != DAF_OK) return fwrite(&status, sizeof status, 1, stdout), status;
    daf_planes_t planes = make_planes(&coder, header->page_bytes);
    status = daf_encode(&coder, src, &planes, header->seed);
    fwrite(&status, sizeof status, 1, stdout);
    for (uint32_t s = 0; status == DAF_OK && s < coder.num_streams; s++) write_stream(&coder, &planes, s);
    for (; status == DAF_OK && planes.num_streams >= 1; planes.num_streams--) {
        uint8_t *back = malloc(header->src_bytes + 1);
        status = daf_decode(&coder, back, &planes);
        fwrite(back, 1, header->src_bytes, stdout);
        free(back);
    }
    free_planes(&planes);
    return status;
}

int main(void) {
    header_t header;
    while (fread(&header, sizeof header, 1, stdin) == 1) {
        uint8_t *src = malloc(header.src_bytes + 1); /* exactly as long as it is: reads beyond are found */
        uint8_t *exact = realloc(src, header.src_bytes ? header.src_bytes : 1);
        if (!exact || fread(exact, 1, header.src_bytes, stdin) != header.src_bytes) return 1;
        run_case(&header, exact);
        free(exact);
    }
    return 0;
}
