/* Floats that are zero or one other value, as dropout's noise and additive masks are. Everything is in stream 0: one
 * plane that says which are not zero, then a unit that begins with the value.
 *
 * Values are compared as bits, so infinities and NaN come back as they were. A third value is DAF_OUT_OF_RANGE: coding
 * and finding out whether the tensor is a mask are one pass. Decoding goes through 256 flags (bytes of 0 or 1), which
 * compilers turn into vector code on any processor.
 */
#include <stdatomic.h>
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

#define GRAIN_UNITS (DAFI_GRAIN_ELEMENTS / DAF_GROUP)

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const uint8_t *src;
    uint8_t *dst;
    const dafi_exact_t *exact;
    uint32_t value; /* bits of the value that is not zero */
    atomic_bool has_third;
} task_t;

static uint32_t num_in_unit(const daf_coder_t *coder, uint64_t unit) {
    uint64_t left = coder->numel - unit * DAF_GROUP;
    return left < DAF_GROUP ? (uint32_t)left : DAF_GROUP;
}

/* For elements of one size: a unit from its flags. It goes through a copy because it may have any alignment. */
#define FROM_FLAGS(bits)                                                                                               \
    static void from_flags_##bits(const uint8_t *flags, uint32_t num, uint32_t value, uint8_t *dst) {                  \
        uint##bits##_t x[DAF_GROUP];                                                                                   \
        for (uint32_t j = 0; j < DAF_GROUP; j++) x[j] = (uint##bits##_t)((0u - flags[j]) & value);                     \
        memcpy(dst, x, num * sizeof *x);                                                                               \
    }
FROM_FLAGS(16)
FROM_FLAGS(32)

static const uint8_t *padded(const uint8_t *src, uint32_t size, uint8_t tail[DAF_GROUP * 4]) {
    memset(tail, 0, DAF_GROUP * 4);
    return memcpy(tail, src, size);
}

static void encode_units(void *context, int64_t first, int64_t last) {
    task_t *task = context;
    bool has_third = false, is_wide = task->coder->dtype == DAF_FLOAT32;
    uint32_t itemsize = is_wide ? 4 : 2;
    for (uint64_t unit = (uint64_t)first; unit < (uint64_t)last && !has_third; unit++) {
        const uint8_t *src = task->src + unit * DAF_GROUP * itemsize;
        uint32_t num = num_in_unit(task->coder, unit);
        uint8_t tail[DAF_GROUP * 4];
        uint64_t words[4];
        if (num < DAF_GROUP) src = padded(src, num * itemsize, tail);
        has_third = task->exact->take_mask(src, is_wide, task->value, words);
        memcpy(dafi_at(task->planes, 0, unit * DAF_UNIT_BYTES), words, sizeof words);
    }
    if (has_third) atomic_store(&task->has_third, true);
}

static void decode_units(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    bool is_wide = task->coder->dtype == DAF_FLOAT32;
    for (uint64_t unit = (uint64_t)first; unit < (uint64_t)last; unit++) {
        uint8_t flags[DAF_GROUP], *dst = task->dst + unit * DAF_GROUP * (is_wide ? 4 : 2);
        uint64_t words[4];
        memcpy(words, dafi_at(task->planes, 0, unit * DAF_UNIT_BYTES), sizeof words);
        for (uint32_t w = 0; w < 4; w++) task->exact->give_flags(words[w], flags + 64 * w);
        (is_wide ? from_flags_32 : from_flags_16)(flags, num_in_unit(task->coder, unit), task->value, dst);
    }
}

static daf_status_t mask_plan(daf_coder_t *coder) {
    if (coder->dtype > DAF_FLOAT16) return DAF_BAD_SPEC;
    coder->num_streams = 1;
    coder->num_groups = dafi_div_up(coder->numel, DAF_GROUP);
    coder->head_offset[0] = coder->num_groups * DAF_UNIT_BYTES;
    coder->stream_bytes[0] = coder->head_offset[0] + DAF_UNIT_BYTES;
    return DAF_OK;
}

/* The first element that is not zero; 0 where all are. */
static uint32_t first_value(const daf_coder_t *coder, const uint8_t *src) {
    uint32_t itemsize = (uint32_t)dafi_itemsize(coder->dtype), value = 0;
    for (uint64_t i = 0; i < coder->numel && !value; i++) memcpy(&value, src + i * itemsize, itemsize);
    return value;
}

static daf_status_t mask_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    (void)seed;
    task_t task = {coder, planes, src, NULL, dafi_isa_now()->exact, first_value(coder, src), false};
    uint8_t *head = dafi_at(planes, 0, coder->head_offset[0]);
    memset(head, 0, DAF_UNIT_BYTES);
    memcpy(head, &task.value, sizeof task.value);
    dafi_parallel_for((int64_t)coder->num_groups, GRAIN_UNITS, encode_units, &task);
    return atomic_load(&task.has_third) ? DAF_OUT_OF_RANGE : DAF_OK;
}

static daf_status_t mask_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    task_t task = {coder, planes, NULL, dst, dafi_isa_now()->exact, 0, false};
    memcpy(&task.value, dafi_at(planes, 0, coder->head_offset[0]), sizeof task.value);
    dafi_parallel_for((int64_t)coder->num_groups, GRAIN_UNITS, decode_units, &task);
    return DAF_OK;
}

const dafi_codec_t dafi_codec_mask = {"mask", 1, 1, mask_plan, mask_encode, mask_decode, NULL, NULL};
