/* A test double of the CUDA driver: the calls that DAF makes, on this machine's own memory.
 *
 * Addresses are reserved with mmap and get pages behind them when mapped, so that touching unmapped memory is a crash
 * here as it is an illegal access there. A stream is a list of work items that touch ranges of memory and are done only
 * when the test says so, or when the host waits for an event. The double counts as a violation
 *   - mapping what is mapped, unmapping what is not, or unmapping what unfinished work touches,
 *   - work that touches memory which unfinished work of another stream touches, without having been ordered behind it.
 * It can be told to fail the n-th call from now.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { UNIT = 1 << 21, MAX_UNITS = 4096, MAX_STREAMS = 8, MAX_WORK = 4096, MAX_EVENTS = 4096, MAX_RANGES = 16 };
enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, FAILURE = 999 };

typedef struct work {
    int stream;
    uintptr_t begin, end;
    uint32_t index; /* in its stream, from 1 */
} work_t;

typedef struct event {
    int is_used, is_recorded, stream;
    uint32_t index;
} event_t;

static uint64_t total_bytes = 256u << 20, mapped_bytes, handle_bytes;
static uintptr_t mapped[MAX_UNITS];
static uint32_t num_mapped;
static struct {
    uintptr_t base;
    size_t num_bytes;
} ranges[MAX_RANGES];
static uint32_t submitted[MAX_STREAMS], completed[MAX_STREAMS], ordered[MAX_STREAMS][MAX_STREAMS];
static work_t works[MAX_WORK];
static uint32_t num_works, num_violations, num_calls, fail_at, num_events, num_handles;
static event_t events[MAX_EVENTS];
static int fail_with = FAILURE, capturing_stream = -1;
static int context_depth;

static int called(void) {
    return ++num_calls == fail_at ? fail_with : SUCCESS;
}
#define ENTER                                                                                                          \
    do {                                                                                                               \
        int status_ = called();                                                                                        \
        if (status_ != SUCCESS) return status_;                                                                        \
    } while (0)

/* Streams are small numbers; the null stream is number 0. */
static int stream_number(const void *stream) {
    return (int)(uintptr_t)stream % MAX_STREAMS;
}

static void retire(void) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < num_works; i++)
        if (works[i].index > completed[works[i].stream]) works[kept++] = works[i];
    num_works = kept;
}

/* What a stream was told to wait for is done before it goes on. */
static void complete(int stream, uint32_t index) {
    if (completed[stream] >= index) return;
    for (int other = 0; other < MAX_STREAMS; other++)
        if (other != stream) complete(other, ordered[stream][other]);
    completed[stream] = index;
    retire();
}

/* ---- for the tests ---- */

void double_submit(int stream, uintptr_t base, size_t num_bytes) {
    for (uint32_t i = 0; i < num_works; i++) {
        const work_t *work = &works[i];
        int overlaps = work->begin < base + num_bytes && base < work->end;
        if (overlaps && work->stream != stream && ordered[stream][work->stream] < work->index) num_violations++;
    }
    if (num_works < MAX_WORK) works[num_works++] = (work_t){stream, base, base + num_bytes, ++submitted[stream]};
    memset((void *)base, stream, num_bytes < 64 ? num_bytes : 64); /* crashes where nothing is mapped */
}

void double_complete(int stream) {
    complete(stream, submitted[stream]);
}
void double_fail(uint32_t calls_from_now, int status) {
    fail_at = calls_from_now ? num_calls + calls_from_now : 0;
    fail_with = status;
}
void double_capture(int stream) {
    capturing_stream = stream;
}
void double_set_total(uint64_t num_bytes) {
    total_bytes = num_bytes;
}
uint64_t double_mapped_bytes(void) {
    return mapped_bytes;
}
uint32_t double_violations(void) {
    return num_violations;
}
uint32_t double_calls(void) {
    return num_calls;
}
uint32_t double_live_events(void) {
    return num_events;
}
uint32_t double_live_handles(void) {
    return num_handles;
}
int double_context_depth(void) {
    return context_depth;
}
void double_reset(void) {
    for (int stream = 0; stream < MAX_STREAMS; stream++) complete(stream, submitted[stream]);
    memset(ordered, 0, sizeof(ordered));
    num_violations = num_calls = fail_at = 0;
    capturing_stream = -1;
    total_bytes = 256u << 20;
}

/* ---- the driver's calls ---- */

int cuInit(unsigned flags) {
    ENTER;
    return flags == 0 ? SUCCESS : INVALID;
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER;
    *device = ordinal;
    return ordinal < 2 ? SUCCESS : 101;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER;
    *context = (void *)(uintptr_t)(device + 1);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return called();
}

int cuCtxPushCurrent_v2(void *context) {
    ENTER;
    context_depth++;
    return context != NULL ? SUCCESS : INVALID;
}

/* Never fails: a driver that cannot pop what it pushed has no defined state to test. */
int cuCtxPopCurrent_v2(void **context) {
    *context = NULL;
    return --context_depth >= 0 ? SUCCESS : INVALID;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER;
    *total = total_bytes;
    *free_bytes = total_bytes - mapped_bytes;
    return SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *num_bytes, const void *prop, int option) {
    (void)prop, (void)option;
    ENTER;
    *num_bytes = UNIT;
    return SUCCESS;
}

int cuMemAddressReserve(uint64_t *base, size_t num_bytes, size_t alignment, uint64_t hint, unsigned long long flags) {
    (void)hint, (void)flags;
    ENTER;
    if (num_bytes % UNIT || alignment % UNIT) return INVALID;
    for (int i = 0; i < MAX_RANGES; i++) {
        if (ranges[i].base != 0) continue;
        void *found = mmap(NULL, num_bytes + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) return OUT_OF_MEMORY;
        ranges[i].base = (uintptr_t)found;
        ranges[i].num_bytes = num_bytes + UNIT;
        *base = ((uintptr_t)found + UNIT - 1) / UNIT * UNIT;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

int cuMemAddressFree(uint64_t base, size_t num_bytes) {
    ENTER;
    for (uint32_t i = 0; i < num_mapped; i++)
        if (mapped[i] >= base && mapped[i] < base + num_bytes) num_violations++;
    for (int i = 0; i < MAX_RANGES; i++)
        if (ranges[i].base <= base && base < ranges[i].base + ranges[i].num_bytes) {
            munmap((void *)ranges[i].base, ranges[i].num_bytes);
            ranges[i].base = 0;
            return SUCCESS;
        }
    num_violations++;
    return INVALID;
}

/* A handle is nothing but its number: memory counts while it is mapped or held by a handle. */
int cuMemCreate(unsigned long long *handle, size_t num_bytes, const void *prop, unsigned long long flags) {
    (void)prop, (void)flags;
    ENTER;
    if (mapped_bytes + handle_bytes + num_bytes > total_bytes) return OUT_OF_MEMORY;
    handle_bytes += num_bytes;
    num_handles++;
    *handle = num_bytes;
    return SUCCESS;
}

int cuMemRelease(unsigned long long handle) {
    handle_bytes -= handle;
    num_handles--;
    return called();
}

int cuMemMap(uint64_t base, size_t num_bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
    (void)offset, (void)handle, (void)flags;
    ENTER;
    for (uint32_t i = 0; i < num_mapped; i++)
        if (mapped[i] == base) num_violations++;
    if (num_bytes != UNIT || base % UNIT || num_mapped == MAX_UNITS) return INVALID;
    mapped[num_mapped++] = base;
    mapped_bytes += num_bytes;
    return SUCCESS;
}

int cuMemUnmap(uint64_t base, size_t num_bytes) {
    ENTER;
    for (uint32_t i = 0; i < num_works; i++)
        if (works[i].begin < base + num_bytes && base < works[i].end) num_violations++;
    for (uint32_t i = 0; i < num_mapped; i++)
        if (mapped[i] == base) {
            mapped[i] = mapped[--num_mapped];
            mapped_bytes -= num_bytes;
            mmap((void *)(uintptr_t)base, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                 -1, 0);
            return SUCCESS;
        }
    num_violations++;
    return INVALID;
}

int cuMemSetAccess(uint64_t base, size_t num_bytes, const void *access, size_t count) {
    (void)access, (void)count;
    ENTER;
    return mprotect((void *)(uintptr_t)base, num_bytes, PROT_READ | PROT_WRITE) == 0 ? SUCCESS : INVALID;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t num_bytes) {
    ENTER;
    memcpy(to, (void *)(uintptr_t)from, num_bytes);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t num_bytes) {
    ENTER;
    memcpy((void *)(uintptr_t)to, from, num_bytes);
    return SUCCESS;
}

int cuEventCreate(event_t **event, unsigned flags) {
    (void)flags;
    ENTER;
    for (uint32_t i = 0; i < MAX_EVENTS; i++)
        if (!events[i].is_used) {
            events[i] = (event_t){.is_used = 1};
            *event = &events[i];
            num_events++;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}

int cuEventDestroy_v2(event_t *event) {
    if (!event->is_used) num_violations++;
    event->is_used = 0;
    num_events--;
    return called();
}

int cuEventRecord(event_t *event, void *stream) {
    ENTER;
    if (capturing_stream >= 0) num_violations++; /* would end the capture */
    event->is_recorded = 1;
    event->stream = stream_number(stream);
    event->index = submitted[event->stream];
    return SUCCESS;
}

int cuEventQuery(event_t *event) {
    ENTER;
    if (capturing_stream >= 0) num_violations++;
    return !event->is_recorded || completed[event->stream] >= event->index ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(event_t *event) {
    ENTER;
    if (capturing_stream >= 0) num_violations++;
    complete(event->stream, event->index);
    return SUCCESS;
}

int cuStreamWaitEvent(void *stream, event_t *event, unsigned flags) {
    (void)flags;
    ENTER;
    uint32_t *known = &ordered[stream_number(stream)][event->stream];
    if (*known < event->index) *known = event->index;
    return SUCCESS;
}

int cuStreamIsCapturing(void *stream, int *status) {
    ENTER;
    *status = stream_number(stream) == capturing_stream;
    return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    *mode = 2 - *mode;
    return called();
}
