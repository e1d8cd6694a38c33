/* Runs codecs on cases from stdin and writes all that they make to stdout, so that another build of the same C (another
 * processor under an emulator, sanitizers) can be compared byte by byte.
 *
 * in:  case header, source bytes; repeated
 * out: status; then the streams; then the decoded elements with all planes, with one dropped, ... with stream 0 alone
 */
#include <stdio.h>
#include "heap_planes.h"

typedef struct header {
    char codec[16], isa[16];
    uint32_t bits, shape, dtype, page_bytes;
    uint64_t numel, cols, rows, seed, src_bytes;
} header_t;

static void write_part(void *context, const uint8_t *bytes, size_t size) {
    fwrite(bytes, 1, size, context);
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
    for (uint32_t s = 0; status == DAF_OK && s < coder.num_streams; s++)
        each_part(&coder, &planes, s, write_part, stdout);
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
