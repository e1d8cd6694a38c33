/* Run groups: cuts a tensor into spans, finds their bytes in the pages, hands them to the fast path or the reference.
 */
#include "numbers.h"
#include "groups/span.h"
#include "threads.h"

#define SPAN_ELEMENTS (DAFI_SPAN_GROUPS * DAF_GROUP)
#define SPAN_UNITS_BYTES (DAFI_SPAN_GROUPS * DAF_UNIT_BYTES)

static uint64_t size_of_group(const dafi_span_t *span, uint32_t g) {
    uint64_t left = span->numel - (uint64_t)g * DAF_GROUP;
    return left < DAF_GROUP ? left : DAF_GROUP;
}

void dafi_span_encode_group(const dafi_span_t *span, uint32_t g) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    dafi_group_job_t job = span->job;
    stored.num = (uint32_t)size_of_group(span, g);
    job.key = dafi_group_key(span->seed, span->first_group + g);
    for (uint32_t j = 0; j < stored.num; j++) x[j] = dafi_load(span->dtype, span->src, (uint64_t)g * DAF_GROUP + j);
    span->codec->encode(&job, x, &stored);
    for (uint32_t s = 0; s <= job.bits; s++) {
        uint32_t head_bytes = span->codec->head_bytes(s);
        if (span->plane[s]) memcpy(span->plane[s] + g * DAF_UNIT_BYTES, stored.plane[s], DAF_UNIT_BYTES);
        if (head_bytes) memcpy(span->head[s] + g * head_bytes, stored.head[s], head_bytes);
    }
}

void dafi_span_decode_group(const dafi_span_t *span, uint32_t g) {
    float x[DAF_GROUP];
    dafi_group_t stored = {0};
    stored.num = (uint32_t)size_of_group(span, g);
    for (uint32_t s = 0; s <= span->job.live; s++) {
        uint32_t head_bytes = span->codec->head_bytes(s);
        if (span->plane[s]) memcpy(stored.plane[s], span->plane[s] + g * DAF_UNIT_BYTES, DAF_UNIT_BYTES);
        if (head_bytes) memcpy(stored.head[s], span->head[s] + g * head_bytes, head_bytes);
    }
    span->codec->decode(&span->job, &stored, x);
    for (uint32_t j = 0; j < stored.num; j++) dafi_store(span->dtype, span->dst, (uint64_t)g * DAF_GROUP + j, x[j]);
}

/* Headers of a span that lie in two pages are moved unit by unit; the others are used in place. */
typedef struct staged {
    uint8_t bytes[DAFI_MAX_PLANES + 1][DAFI_SPAN_GROUPS * 8];
    bool is_used[DAFI_MAX_PLANES + 1];
} staged_t;

static uint64_t head_place(const daf_coder_t *coder, const dafi_span_t *span, uint32_t s) {
    return coder->head_offset[s] + span->first_group * coder->head_bytes[s];
}

static uint32_t head_size(const daf_coder_t *coder, const dafi_span_t *span, uint32_t s) {
    return (uint32_t)dafi_div_up(span->numel, DAF_GROUP) * coder->head_bytes[s];
}

static void move_heads(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span, staged_t *staged,
                       bool to_planes) {
    for (uint32_t s = 0; s < planes->num_streams; s++) {
        uint32_t size = staged->is_used[s] ? head_size(coder, span, s) : 0;
        for (uint32_t done = 0; done < size; done += DAF_UNIT_BYTES) {
            uint8_t *unit = dafi_at(planes, s, head_place(coder, span, s) + done);
            uint32_t part = size - done < DAF_UNIT_BYTES ? size - done : DAF_UNIT_BYTES;
            if (to_planes)
                memcpy(unit, staged->bytes[s] + done, part);
            else
                memcpy(staged->bytes[s] + done, unit, part);
        }
    }
}

static void find_bytes(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span, staged_t *staged) {
    for (uint32_t s = 0; s < planes->num_streams; s++) {
        uint64_t place = head_place(coder, span, s);
        span->plane[s] = s || span->codec->has_support ? dafi_at(planes, s, span->first_group * DAF_UNIT_BYTES) : NULL;
        staged->is_used[s] = (place & (planes->page_bytes - 1)) + head_size(coder, span, s) > planes->page_bytes;
        span->head[s] = staged->is_used[s] ? staged->bytes[s] : coder->head_bytes[s] ? dafi_at(planes, s, place) : NULL;
    }
}

dafi_span_t dafi_span_of(const daf_coder_t *coder, uint64_t index, uint32_t live, uint64_t seed) {
    uint64_t first = index * SPAN_ELEMENTS, left = coder->numel - first;
    return (dafi_span_t){
        .numel = left < SPAN_ELEMENTS ? left : SPAN_ELEMENTS,
        .first_group = index * DAFI_SPAN_GROUPS,
        .seed = seed,
        .codec = dafi_codec_of(coder)->group,
        .job = dafi_job_of(coder, live),
        .dtype = coder->dtype,
    };
}

void dafi_span_encode_groups(const dafi_span_t *span) {
    int kernel = span->codec->kernel;
    dafi_span_fn fast = kernel < 0 ? NULL : dafi_isa_now()->encode[kernel];
    if (fast) fast(span);
    for (uint32_t g = 0; !fast && g < dafi_div_up(span->numel, DAF_GROUP); g++) dafi_span_encode_group(span, g);
}

void dafi_span_decode_groups(const dafi_span_t *span) {
    int kernel = span->codec->kernel;
    dafi_span_fn fast = kernel < 0 ? NULL : dafi_isa_now()->decode[kernel];
    if (fast) fast(span);
    for (uint32_t g = 0; !fast && g < dafi_div_up(span->numel, DAF_GROUP); g++) dafi_span_decode_group(span, g);
}

/* Encodes into planes of its own and writes these out line by line, past the caches. Pages begin at the same places of
 * a cache: eight planes written side by side would drive each other out of it before their lines are full. */
static void encode_streaming(dafi_span_t *span) {
    uint8_t lines[DAFI_MAX_PLANES + 1][SPAN_UNITS_BYTES] __attribute__((aligned(DAFI_STREAMING_ALIGN)));
    uint8_t *place[DAFI_MAX_PLANES + 1];
    void (*stream)(void *to, const void *from, size_t size) = dafi_isa_now()->stream;
    for (uint32_t s = 0; s <= span->job.bits; s++) {
        place[s] = span->plane[s];
        span->plane[s] = place[s] ? lines[s] : NULL;
    }
    dafi_span_encode_groups(span);
    for (uint32_t s = 0; s <= span->job.bits; s++) {
        if (!place[s]) continue;
        if (stream && (uintptr_t)place[s] % DAFI_STREAMING_ALIGN == 0)
            stream(place[s], lines[s], SPAN_UNITS_BYTES);
        else
            memcpy(place[s], lines[s], SPAN_UNITS_BYTES);
    }
}

void dafi_span_encode(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span) {
    staged_t staged;
    find_bytes(coder, planes, span, &staged);
    if (span->is_streaming && span->numel == SPAN_ELEMENTS)
        encode_streaming(span);
    else
        dafi_span_encode_groups(span);
    move_heads(coder, planes, span, &staged, true);
}

void dafi_span_decode(const daf_coder_t *coder, const daf_planes_t *planes, dafi_span_t *span) {
    staged_t staged;
    find_bytes(coder, planes, span, &staged);
    move_heads(coder, planes, span, &staged, false);
    dafi_span_decode_groups(span);
}

typedef struct task {
    const daf_coder_t *coder;
    const daf_planes_t *planes;
    const uint8_t *src;
    uint8_t *dst;
    uint64_t seed;
} task_t;

static void encode_spans(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    bool is_streaming = dafi_is_big(task->coder) && dafi_isa_now()->stream;
    for (uint64_t i = (uint64_t)first; i < (uint64_t)last; i++) {
        dafi_span_t span = dafi_span_of(task->coder, i, task->coder->bits, task->seed);
        span.src = task->src + i * SPAN_ELEMENTS * dafi_itemsize(span.dtype);
        span.is_streaming = is_streaming;
        dafi_span_encode(task->coder, task->planes, &span);
    }
    if (is_streaming) dafi_stream_fence();
}

static void decode_spans(void *context, int64_t first, int64_t last) {
    const task_t *task = context;
    bool is_streaming = dafi_is_streaming(task->coder, task->dst);
    for (uint64_t i = (uint64_t)first; i < (uint64_t)last; i++) {
        dafi_span_t span = dafi_span_of(task->coder, i, task->planes->num_streams - 1, 0);
        span.dst = task->dst + i * SPAN_ELEMENTS * dafi_itemsize(span.dtype);
        span.is_streaming = is_streaming;
        dafi_span_decode(task->coder, task->planes, &span);
    }
    if (is_streaming) dafi_stream_fence();
}

static void over_spans(task_t task, void (*work)(void *context, int64_t first, int64_t last)) {
    dafi_parallel_for((int64_t)dafi_div_up(task.coder->numel, SPAN_ELEMENTS), DAFI_GRAIN_ELEMENTS / SPAN_ELEMENTS, work,
                      &task);
}

void dafi_run_encode(const daf_coder_t *coder, const void *src, const daf_planes_t *planes, uint64_t seed) {
    over_spans((task_t){coder, planes, src, NULL, seed}, encode_spans);
}

void dafi_run_decode(const daf_coder_t *coder, void *dst, const daf_planes_t *planes) {
    over_spans((task_t){coder, planes, NULL, dst, 0}, decode_spans);
}
