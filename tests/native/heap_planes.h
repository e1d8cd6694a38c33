/* Planes whose every page is an allocation of its own: a read beyond a page is a read beyond a heap block. */
#ifndef DAF_TEST_HEAP_PLANES_H
#define DAF_TEST_HEAP_PLANES_H
#include <stdlib.h>
#include <string.h>
#include "planes.h"

/* Pages are made in reverse order, so that none follows the one before it. */
static inline daf_planes_t make_planes(const daf_coder_t *coder, uint32_t page_bytes) {
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

static inline void free_planes(daf_planes_t *planes) {
    for (uint32_t i = 0; planes->pages[i]; i++) free(planes->pages[i]);
    free((void *)planes->pages);
}

/* Hands the parts of a stream, page by page, to `take`. */
static inline void each_part(const daf_coder_t *coder, const daf_planes_t *planes, uint32_t s,
                             void (*take)(void *context, const uint8_t *bytes, size_t size), void *context) {
    for (uint64_t offset = 0; offset < coder->stream_bytes[s]; offset += planes->page_bytes) {
        uint64_t left = coder->stream_bytes[s] - offset;
        size_t part = left < planes->page_bytes ? (size_t)left : planes->page_bytes;
        take(context, planes->pages[planes->first_page[s] + offset / planes->page_bytes], part);
    }
}
#endif
