/* The instruction sets, best first, and which one is in force: chosen once, at the first use. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "numbers.h"
#include "groups/span.h"

static bool always(void) {
    return true;
}

static void add_regular(uint32_t dtype, const void *src, uint64_t num, float *sum, uint32_t *count) {
    dafi_add_regular(dtype, src, 0, num, sum, count);
}
static void widen(uint32_t dtype, const void *src, const float *less, uint64_t num, float *x) {
    for (uint64_t j = 0; j < num; j++) x[j] = dafi_load(dtype, src, j) - less[j];
}
static void narrow(uint32_t dtype, const float *x, const float *plus, uint64_t num, void *dst, bool is_streaming) {
    (void)is_streaming;
    for (uint64_t j = 0; j < num; j++) dafi_store(dtype, dst, j, plus[j] + x[j]);
}

static const dafi_isa_t scalar = {
    .name = "scalar",
    .is_available = always,
    .exact = &dafi_exact_reference,
    .add_regular = add_regular,
    .widen = widen,
    .narrow = narrow,
    .attend = dafi_attend_reference,
};
#if defined(__x86_64__)
extern const dafi_isa_t dafi_isa_avx512, dafi_isa_avx2;
static const dafi_isa_t *const known[] = {&dafi_isa_avx512, &dafi_isa_avx2, &scalar};
#elif defined(__aarch64__)
extern const dafi_isa_t dafi_isa_neon;
static const dafi_isa_t *const known[] = {&dafi_isa_neon, &scalar};
#else
static const dafi_isa_t *const known[] = {&scalar};
#endif
#define NUM_KNOWN (sizeof known / sizeof *known)

static const dafi_isa_t *find(const char *name) {
    for (size_t i = 0; i < NUM_KNOWN; i++)
        if (known[i]->is_available() && (!name || strcmp(known[i]->name, name) == 0)) return known[i];
    return NULL;
}

void dafi_stream_fence(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

static _Atomic(const dafi_isa_t *) in_force;

const dafi_isa_t *dafi_isa_now(void) {
    const dafi_isa_t *isa = atomic_load_explicit(&in_force, memory_order_relaxed);
    if (isa) return isa;
    const char *wish = getenv("DAF_ISA");
    isa = wish && *wish ? find(wish) : NULL;
    isa = isa ? isa : find(NULL); /* a wish that this CPU cannot fulfil: the best it has */
    atomic_store(&in_force, isa);
    return isa;
}

const char *daf_isa(void) {
    return dafi_isa_now()->name;
}

const char *daf_isa_at(uint32_t index) {
    for (size_t i = 0; i < NUM_KNOWN; i++)
        if (known[i]->is_available() && index-- == 0) return known[i]->name;
    return NULL;
}

daf_status_t daf_set_isa(const char *name) {
    const dafi_isa_t *isa = find(name);
    if (!isa) return DAF_BAD_SPEC;
    atomic_store(&in_force, isa);
    return DAF_OK;
}
