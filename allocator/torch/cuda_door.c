#include "os/cuda_backend.h"
#include "os/cuda_streams.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "stats/meter_internal.h"
#include "trace/trace_internal.h"

typedef struct device {
    pthread_mutex_t lock;
    daf_arena_t *arena;
    int ordinal, has_home, is_own_arena;
    int is_capturing; /* a graph is being recorded: no events, and nothing is unmapped */
    daf_cuda_stream_t home;
    dafi_streams_t streams;
    daf_meter_t meter;
} device_t;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static device_t devices[DAF_MAX_DEVICES];
static daf_raise_fn raise_fn;
static daf_notice_fn notice_fn;
static uint64_t own_budget_bytes;
static uint32_t own_page_bytes;
static int was_noticed[DAF_NUM_NOTICES];

static device_t *device_at(int ordinal) {
    if (ordinal < 0 || ordinal >= DAF_MAX_DEVICES) return NULL;
    device_t *device = &devices[ordinal];
    return __atomic_load_n(&device->arena, __ATOMIC_ACQUIRE) == NULL ? NULL : device;
}

/* ---- pending blocks ---- */

static void give_back(device_t *device, dafi_cuda_block_t *block) {
    device->streams.counts.pending_blocks--;
    device->streams.counts.pending_bytes -= block->block_bytes;
    daf_arena_free(device->arena, block->address);
    dafi_block_delete(block);
}

/* Return to the arena what the device is done with; returns the bytes. Under the device's lock. */
static uint64_t collect(device_t *device, int wait) {
    uint64_t num_bytes = 0;
    if (device->is_capturing || device->streams.pending == NULL || !dafi_backend_cuda_enter(device->ordinal)) return 0;
    for (dafi_cuda_block_t **link = &device->streams.pending; *link != NULL;) {
        dafi_cuda_block_t *block = *link;
        if (!dafi_block_is_done(&device->streams, block, wait)) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        num_bytes += block->block_bytes;
        give_back(device, block);
    }
    dafi_backend_cuda_leave();
    return num_bytes;
}

static uint64_t reclaim(void *context, uint64_t wanted_bytes) {
    device_t *device = context;
    (void)wanted_bytes;
    pthread_mutex_lock(&device->lock);
    uint64_t num_bytes = collect(device, 1);
    if (num_bytes > 0) device->meter.num_retries++;
    pthread_mutex_unlock(&device->lock);
    return num_bytes;
}

/* Under the arena's lock, and the device's context is current. Takes no lock: the arena calls from any thread. */
static daf_status_t quiesce(void *context) {
    device_t *device = context;
    const dafi_cuda_t *cuda = dafi_cuda();
    if (!__atomic_load_n(&device->has_home, __ATOMIC_ACQUIRE)) return DAF_OK;
    if (__atomic_load_n(&device->is_capturing, __ATOMIC_ACQUIRE)) return DAF_SYSTEM;
    dafi_cu_event_t event;
    if (cuda->event_create(&event, DAFI_CU_EVENT_NO_TIMING) != DAFI_CU_SUCCESS) return DAF_SYSTEM;
    dafi_cu_result_t result = cuda->event_record(event, device->home);
    if (result == DAFI_CU_SUCCESS) result = cuda->event_synchronize(event);
    cuda->event_destroy(event);
    return result == DAFI_CU_SUCCESS ? DAF_OK : DAF_SYSTEM;
}

/* ---- arenas ---- */

static daf_status_t attach(int ordinal, daf_arena_t *arena, int is_own) {
    device_t *device = &devices[ordinal];
    if (device->arena != NULL) return DAF_INVALID;
    pthread_mutex_init(&device->lock, NULL);
    device->ordinal = ordinal;
    device->is_own_arena = is_own;
    device->has_home = device->is_capturing = 0;
    dafi_backend_cuda_set_quiesce(ordinal, quiesce, device);
    daf_arena_set_reclaim(arena, reclaim, device);
    __atomic_store_n(&device->arena, arena, __ATOMIC_RELEASE);
    return DAF_OK;
}

daf_status_t daf_cuda_attach(int ordinal, daf_arena_t *arena) {
    if (arena == NULL || daf_backend_cuda(ordinal) == NULL) return DAF_INVALID;
    pthread_mutex_lock(&open_lock);
    daf_status_t status = attach(ordinal, arena, 0);
    pthread_mutex_unlock(&open_lock);
    return status;
}

static void open_own(int ordinal) {
    daf_arena_config_t config = {.backend = daf_backend_cuda(ordinal)};
    daf_arena_t *arena;
    if (config.backend == NULL) return;
    config.budget_bytes = own_budget_bytes ? own_budget_bytes : daf_cuda_total_bytes(ordinal) / 10 * 9;
    config.reserve_bytes = daf_cuda_total_bytes(ordinal) * 4;
    config.page_bytes = own_page_bytes;
    daf_status_t status = daf_arena_open(&config, &arena);
    if (status == DAF_INVALID) { /* pages too small for the device's units */
        config.page_bytes = 0;
        status = daf_arena_open(&config, &arena);
    }
    if (status == DAF_OK) attach(ordinal, arena, 1);
}

void daf_cuda_set_own(uint64_t budget_bytes, uint32_t page_bytes) {
    pthread_mutex_lock(&open_lock);
    own_budget_bytes = budget_bytes;
    own_page_bytes = page_bytes;
    pthread_mutex_unlock(&open_lock);
}

static device_t *device_for(int ordinal) {
    device_t *device = device_at(ordinal);
    if (device != NULL || ordinal < 0 || ordinal >= DAF_MAX_DEVICES) return device;
    pthread_mutex_lock(&open_lock);
    if (devices[ordinal].arena == NULL) open_own(ordinal);
    pthread_mutex_unlock(&open_lock);
    return device_at(ordinal);
}

/* Wait until the device is done with `block`, whoever used it, and forget it. */
static void drop(device_t *device, dafi_cuda_block_t *block) {
    dafi_block_add_use(block, block->stream);
    dafi_block_is_done(&device->streams, block, 1);
    daf_arena_free(device->arena, block->address);
    dafi_block_delete(block);
}

static void drop_all(device_t *device) {
    dafi_streams_t *streams = &device->streams;
    int is_entered = dafi_backend_cuda_enter(device->ordinal);
    for (uint32_t i = 0; i < DAFI_NUM_BUCKETS; i++)
        while (streams->live[i] != NULL) drop(device, dafi_live_take(streams, streams->live[i]->address));
    while (streams->captured != NULL) {
        dafi_cuda_block_t *block = streams->captured;
        streams->captured = block->next;
        drop(device, block);
    }
    if (is_entered) dafi_backend_cuda_leave();
}

void daf_cuda_detach(int ordinal) {
    device_t *device = device_at(ordinal);
    if (device == NULL) return;
    pthread_mutex_lock(&device->lock);
    device->is_capturing = 0;
    collect(device, 1);
    while (device->streams.pending != NULL) { /* the driver is broken: nothing will ever say that they are done */
        dafi_cuda_block_t *block = device->streams.pending;
        device->streams.pending = block->next;
        give_back(device, block);
    }
    drop_all(device);
    daf_arena_t *arena = device->arena;
    daf_arena_set_reclaim(arena, NULL, NULL);
    __atomic_store_n(&device->arena, NULL, __ATOMIC_RELEASE);
    device->streams = (dafi_streams_t){0};
    device->meter = (daf_meter_t){0};
    pthread_mutex_unlock(&device->lock);
    if (device->is_own_arena) daf_arena_close(arena);
}

daf_arena_t *daf_cuda_arena(int ordinal) {
    device_t *device = device_at(ordinal);
    return device == NULL ? NULL : device->arena;
}

int daf_cuda_home(int ordinal, daf_cuda_stream_t *stream) {
    device_t *device = device_at(ordinal);
    if (device == NULL || !__atomic_load_n(&device->has_home, __ATOMIC_ACQUIRE)) return 0;
    *stream = device->home;
    return 1;
}

/* ---- what torch calls ---- */

static void note(daf_cuda_notice_t notice) {
    if (notice_fn != NULL && !__atomic_exchange_n(&was_noticed[notice], 1, __ATOMIC_RELAXED)) notice_fn(notice);
}

static int look_for_capture(device_t *device, daf_cuda_stream_t stream) {
    int status = DAFI_CU_CAPTURE_NONE;
    int is_capturing =
        dafi_cuda()->stream_is_capturing(stream, &status) == DAFI_CU_SUCCESS && status != DAFI_CU_CAPTURE_NONE;
    __atomic_store_n(&device->is_capturing, is_capturing, __ATOMIC_RELEASE);
    return is_capturing;
}

/* A freed block that `stream` may have at once. */
static dafi_cuda_block_t *reuse(device_t *device, uint64_t num_bytes, daf_cuda_stream_t stream) {
    dafi_streams_t *streams = &device->streams;
    dafi_cuda_block_t *block = NULL;
    pthread_mutex_lock(&device->lock);
    if (!device->has_home) {
        device->home = stream;
        __atomic_store_n(&device->has_home, 1, __ATOMIC_RELEASE);
    }
    if (look_for_capture(device, stream)) {
        block = dafi_list_take_fit(&streams->captured, num_bytes, stream);
        if (block != NULL) streams->counts.captured_blocks--, streams->counts.captured_bytes -= block->block_bytes;
    } else {
        block = dafi_list_take_fit(&streams->pending, num_bytes, stream);
        if (block != NULL) streams->counts.pending_blocks--, streams->counts.pending_bytes -= block->block_bytes;
        collect(device, 0);
    }
    pthread_mutex_unlock(&device->lock);
    return block;
}

/* Memory from the arena may have been the home stream's a moment ago: `stream` must come behind that. */
static int order_behind_home(device_t *device, daf_cuda_stream_t stream) {
    const dafi_cuda_t *cuda = dafi_cuda();
    dafi_cu_event_t event;
    if (stream == device->home || device->is_capturing) return 1;
    if (cuda->event_create(&event, DAFI_CU_EVENT_NO_TIMING) != DAFI_CU_SUCCESS) return 0;
    dafi_cu_result_t result = cuda->event_record(event, device->home);
    if (result == DAFI_CU_SUCCESS && cuda->stream_wait(stream, event, 0) != DAFI_CU_SUCCESS)
        result = cuda->event_synchronize(event);
    cuda->event_destroy(event); /* the driver keeps it until the stream has passed */
    device->streams.counts.num_waits++;
    return result == DAFI_CU_SUCCESS;
}

static dafi_cuda_block_t *carve(device_t *device, uint64_t num_bytes, daf_cuda_stream_t stream) {
    dafi_cuda_block_t *block = calloc(1, sizeof(*block));
    if (block == NULL) return NULL;
    int mode = DAFI_CU_CAPTURE_RELAXED;
    if (device->is_capturing) dafi_cuda()->exchange_capture_mode(&mode);
    daf_status_t status = daf_arena_alloc(device->arena, num_bytes, &block->address);
    if (device->is_capturing) dafi_cuda()->exchange_capture_mode(&mode);
    if (status == DAF_OK && !order_behind_home(device, stream)) {
        daf_arena_free(device->arena, block->address);
        status = DAF_SYSTEM;
    }
    if (status != DAF_OK) {
        free(block);
        return NULL;
    }
    block->block_bytes = daf_arena_block_bytes(device->arena, block->address);
    return block;
}

static void *hand_out(device_t *device, dafi_cuda_block_t *block, uint64_t num_bytes, daf_cuda_stream_t stream) {
    pthread_mutex_lock(&device->lock);
    block->requested_bytes = num_bytes;
    block->stream = stream;
    block->is_captured |= device->is_capturing;
    dafi_live_add(&device->streams, block);
    pthread_mutex_unlock(&device->lock);
    dafi_meter_up(&device->meter, block->block_bytes, num_bytes);
    dafi_trace(DAF_TRACE_ALLOCATE, block->address, num_bytes, stream);
    return block->address;
}

static void fail(const device_t *device, int ordinal, uint64_t num_bytes) {
    char report[2048];
    if (device != NULL)
        daf_arena_explain(device->arena, num_bytes, report, sizeof(report));
    else
        snprintf(report, sizeof(report), "DAF: no memory on CUDA device %d: %s", ordinal, daf_cuda_why_not());
    if (raise_fn != NULL) raise_fn(report);
}

void *daf_malloc(size_t num_bytes, int ordinal, daf_cuda_stream_t stream) {
    device_t *device = device_for(ordinal);
    dafi_cuda_block_t *block = NULL;
    if (device != NULL && dafi_backend_cuda_enter(ordinal)) {
        block = reuse(device, num_bytes, stream);
        if (block == NULL) block = carve(device, num_bytes, stream);
        dafi_backend_cuda_leave();
    }
    if (device != NULL && device->is_capturing) note(DAF_NOTICE_CAPTURE);
    if (block != NULL) return hand_out(device, block, num_bytes, stream);
    if (device != NULL) __atomic_fetch_add(&device->meter.num_ooms, 1, __ATOMIC_RELAXED);
    fail(device, ordinal, num_bytes);
    return NULL;
}

static void put_aside(dafi_cuda_block_t **list, dafi_cuda_block_t *block, uint64_t *num_blocks, uint64_t *num_bytes) {
    block->next = *list;
    *list = block;
    *num_blocks += 1;
    *num_bytes += block->block_bytes;
}

/* Under the device's lock. */
static void retire(device_t *device, dafi_cuda_block_t *block) {
    dafi_streams_t *streams = &device->streams;
    if (block->is_captured) {
        put_aside(&streams->captured, block, &streams->counts.captured_blocks, &streams->counts.captured_bytes);
    } else if (block->stream == device->home && !block->is_shared) {
        daf_arena_free(device->arena, block->address);
        dafi_block_delete(block);
    } else {
        put_aside(&streams->pending, block, &streams->counts.pending_blocks, &streams->counts.pending_bytes);
        dafi_block_add_use(block, block->stream);
        if (!device->is_capturing && dafi_backend_cuda_enter(device->ordinal)) {
            dafi_block_is_done(streams, block, 0); /* records the events */
            dafi_backend_cuda_leave();
        }
    }
}

void daf_free(void *address, size_t num_bytes, int ordinal, daf_cuda_stream_t stream) {
    device_t *device = device_at(ordinal);
    (void)num_bytes, (void)stream; /* ours are known by address */
    if (device == NULL || address == NULL) return;
    pthread_mutex_lock(&device->lock);
    dafi_cuda_block_t *block = dafi_live_take(&device->streams, address);
    if (block != NULL) {
        dafi_meter_down(&device->meter, block->block_bytes, block->requested_bytes);
        dafi_trace(DAF_TRACE_FREE, address, block->block_bytes, block->stream);
        retire(device, block);
    }
    pthread_mutex_unlock(&device->lock);
}

/* torch does not say on which device: the address does. */
static device_t *device_of(const void *address) {
    for (int ordinal = 0; ordinal < DAF_MAX_DEVICES; ordinal++) {
        device_t *device = device_at(ordinal);
        if (device != NULL && daf_arena_owns(device->arena, address)) return device;
    }
    return NULL;
}

void daf_record_stream(void *address, daf_cuda_stream_t stream) {
    device_t *device = device_of(address);
    if (device == NULL) return;
    pthread_mutex_lock(&device->lock);
    dafi_cuda_block_t *block = dafi_live_find(&device->streams, address);
    if (block != NULL && block->stream != stream) dafi_block_add_use(block, stream);
    pthread_mutex_unlock(&device->lock);
}

void daf_init(int num_devices) {
    (void)num_devices; /* arenas open with the first request for their device */
}

void daf_reset(void) {
    for (int ordinal = 0; ordinal < DAF_MAX_DEVICES; ordinal++) {
        device_t *device = device_at(ordinal);
        if (device == NULL) continue;
        pthread_mutex_lock(&device->lock);
        collect(device, 1);
        pthread_mutex_unlock(&device->lock);
        daf_arena_trim(device->arena, UINT64_MAX);
    }
}

void daf_memory_fraction(double fraction, int ordinal) {
    device_t *device = device_for(ordinal);
    daf_outcome_t outcome;
    if (device == NULL || !(fraction > 0)) return;
    daf_arena_set_budget(device->arena, (uint64_t)(fraction * (double)daf_cuda_total_bytes(ordinal)), 1, &outcome);
}

void *daf_base_alloc(void *address, size_t *num_bytes) {
    device_t *device = device_of(address);
    if (num_bytes != NULL) *num_bytes = device == NULL ? 0 : daf_arena_block_bytes(device->arena, address);
    return address;
}

/* ---- settings and numbers ---- */

void daf_cuda_set_raise(daf_raise_fn raise) {
    raise_fn = raise;
}

void daf_cuda_set_notice(daf_notice_fn notice) {
    notice_fn = notice;
}

void daf_cuda_meter(int ordinal, daf_meter_t *copy) {
    device_t *device = device_at(ordinal);
    *copy = device == NULL ? (daf_meter_t){0} : device->meter;
}

void daf_cuda_reset_peaks(int ordinal) {
    device_t *device = device_at(ordinal);
    if (device != NULL) dafi_meter_reset_peaks(&device->meter);
}

void daf_cuda_counts(int ordinal, daf_cuda_counts_t *counts) {
    device_t *device = device_at(ordinal);
    *counts = device == NULL ? (daf_cuda_counts_t){0} : device->streams.counts;
}
