/* Host memory: anonymous mappings. Addresses are taken readable and writable at once, and physical memory comes with
 * the first touch, so commit is free of charge; decommit hands the pages back and leaves the addresses. */
#define _GNU_SOURCE
#include "backend.h"

#include <sys/mman.h>

static daf_status_t host_reserve(void *self, uint64_t num_bytes, uint8_t **base) {
    (void)self;
    void *found = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return DAF_SYSTEM;
    *base = found;
    return DAF_OK;
}

static void host_unreserve(void *self, uint8_t *base, uint64_t num_bytes) {
    (void)self;
    munmap(base, num_bytes);
}

static daf_status_t host_commit(void *self, uint8_t *base, uint64_t num_bytes) {
    (void)self, (void)base, (void)num_bytes;
    return DAF_OK;
}

static daf_status_t host_decommit(void *self, uint8_t *base, uint64_t num_bytes) {
    (void)self;
    return madvise(base, num_bytes, MADV_DONTNEED) == 0 ? DAF_OK : DAF_SYSTEM;
}

const daf_backend_t *daf_backend_host(void) {
    static const daf_backend_t host = {
        .name = "host",
        .unit_bytes = 4096,
        .reserve = host_reserve,
        .unreserve = host_unreserve,
        .commit = host_commit,
        .decommit = host_decommit,
    };
    return &host;
}
