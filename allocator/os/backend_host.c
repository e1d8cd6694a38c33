/* Host memory: anonymous mappings. Addresses are taken readable and writable at once, and physical memory comes with
 * the first touch, so commit is free of charge; decommit hands the pages back and leaves the addresses. */
#define _GNU_SOURCE
#include "os/backend.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>

#define RENEW_BYTES 65536u
#define HUGE_BYTES (UINT64_C(2) << 20)
#define RESERVED MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE

static bool can_span; /* one call moves several mappings: Linux 6.17 */

static daf_status_t host_reserve(void *self, uint64_t num_bytes, uint8_t **base) {
    (void)self;
    void *found = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, RESERVED, -1, 0);
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

static bool map_afresh(uint8_t *base, uint64_t num_bytes) {
    return mmap(base, num_bytes, PROT_READ | PROT_WRITE, RESERVED | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* Much at once is mapped afresh: that also removes the seams that moving left. */
static daf_status_t host_decommit(void *self, uint8_t *base, uint64_t num_bytes) {
    (void)self;
    if (num_bytes >= RENEW_BYTES && map_afresh(base, num_bytes)) return DAF_OK;
    return madvise(base, num_bytes, MADV_DONTNEED) == 0 ? DAF_OK : DAF_SYSTEM;
}

/* A wish: where the system refuses it, pages stay small. */
static void host_prefer_huge(void *self, uint8_t *base, uint64_t num_bytes) {
    (void)self;
    uint64_t before = -(uintptr_t)base % HUGE_BYTES;
    if (num_bytes >= before + HUGE_BYTES)
        madvise(base + before, (num_bytes - before) / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
}

/* Older kernels clear the target before they find that the source is more than one mapping: they move aside first,
 * which fails without a trace. */
static daf_status_t move_pages(uint8_t *from, uint8_t *to, uint64_t num_bytes) {
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (can_span) return mremap(from, num_bytes, num_bytes, flags | MREMAP_DONTUNMAP, to) == to ? DAF_OK : DAF_SYSTEM;
    void *aside = mremap(from, num_bytes, num_bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (aside == MAP_FAILED) return DAF_SYSTEM;
    if (mremap(aside, num_bytes, num_bytes, flags, to) == to) return DAF_OK;
    munmap(aside, num_bytes);
    return map_afresh(to, num_bytes) ? DAF_OK : DAF_SYSTEM;
}

/* Addresses that are left without memory must not prefer huge pages any more: one would bring more than is counted. */
static daf_status_t host_move(void *self, uint8_t *from, uint8_t *to, uint64_t num_bytes) {
    (void)self;
    daf_status_t status = move_pages(from, to, num_bytes);
    if (status == DAF_OK) map_afresh(from, num_bytes);
    return status;
}

static daf_backend_t host = {
    .name = "host",
    .unit_bytes = 4096,
    .reserve = host_reserve,
    .unreserve = host_unreserve,
    .commit = host_commit,
    .decommit = host_decommit,
    .prefer_huge = host_prefer_huge,
    .move = host_move,
};

/* Page 0 is moved to 4, then 3 and 4, two mappings now, to 6 and 7. */
static void try_moving(void) {
    uint64_t page = host.unit_bytes;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    uint8_t *base = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, RESERVED, -1, 0);
    if (base == MAP_FAILED) return;
    base[0] = base[3 * page] = 1;
    if (mremap(base, page, page, flags, base + 4 * page) == MAP_FAILED)
        host.move = NULL;
    else
        can_span = mremap(base + 3 * page, 2 * page, 2 * page, flags, base + 6 * page) != MAP_FAILED;
    munmap(base, 8 * page);
}

const daf_backend_t *daf_backend_host(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, try_moving);
    return &host;
}
