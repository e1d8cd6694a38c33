/* The few calls of the CUDA driver that DAF makes, found at run time: this builds and loads where there is no CUDA.
 *
 * Types and numbers are those of the driver's own ABI, spelled out here because its header may not be at hand; a
 * test compares them with that header where it is.
 */
#ifndef DAFI_CUDA_DRIVER_H
#define DAFI_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "torch/cuda_door.h"

typedef int dafi_cu_result_t;
typedef uint64_t dafi_cu_address_t;
typedef struct dafi_cu_context *dafi_cu_context_t;
typedef struct dafi_cu_event *dafi_cu_event_t;

enum {
    DAFI_CU_SUCCESS = 0,
    DAFI_CU_OUT_OF_MEMORY = 2,
    DAFI_CU_NOT_READY = 600,
    DAFI_CU_PINNED = 1,     /* allocation type */
    DAFI_CU_DEVICE = 1,     /* location type */
    DAFI_CU_READ_WRITE = 3, /* access flags */
    DAFI_CU_GRANULARITY_MINIMUM = 0,
    DAFI_CU_EVENT_NO_TIMING = 2,
    DAFI_CU_CAPTURE_NONE = 0,
    DAFI_CU_CAPTURE_RELAXED = 2, /* mode in which memory may be mapped while a graph is recorded */
};

typedef struct dafi_cu_location {
    int type, id;
} dafi_cu_location_t;

typedef struct dafi_cu_prop {
    int type, handle_types;
    dafi_cu_location_t location;
    void *win32_data;
    struct {
        uint8_t compression, rdma;
        uint16_t usage;
        uint8_t reserved[4];
    } flags;
} dafi_cu_prop_t;

typedef struct dafi_cu_access {
    dafi_cu_location_t location;
    int flags;
} dafi_cu_access_t;

/* Every call: its name for dlsym, its result type is the driver's status. One list, so that none is left unfilled. */
#define DAFI_CU_CALLS(CALL)                                                                                            \
    CALL(init, "cuInit", (unsigned flags))                                                                             \
    CALL(device_get, "cuDeviceGet", (int *device, int ordinal))                                                        \
    CALL(context_retain, "cuDevicePrimaryCtxRetain", (dafi_cu_context_t * context, int device))                        \
    CALL(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                \
    CALL(context_push, "cuCtxPushCurrent_v2", (dafi_cu_context_t context))                                             \
    CALL(context_pop, "cuCtxPopCurrent_v2", (dafi_cu_context_t * context))                                             \
    CALL(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                                  \
    CALL(granularity, "cuMemGetAllocationGranularity", (size_t * num_bytes, const dafi_cu_prop_t *prop, int option))   \
    CALL(reserve, "cuMemAddressReserve",                                                                               \
         (dafi_cu_address_t * base, size_t num_bytes, size_t alignment, dafi_cu_address_t hint,                        \
          unsigned long long flags))                                                                                   \
    CALL(unreserve, "cuMemAddressFree", (dafi_cu_address_t base, size_t num_bytes))                                    \
    CALL(create, "cuMemCreate",                                                                                        \
         (unsigned long long *handle, size_t num_bytes, const dafi_cu_prop_t *prop, unsigned long long flags))         \
    CALL(release, "cuMemRelease", (unsigned long long handle))                                                         \
    CALL(map, "cuMemMap",                                                                                              \
         (dafi_cu_address_t base, size_t num_bytes, size_t offset, unsigned long long handle,                          \
          unsigned long long flags))                                                                                   \
    CALL(unmap, "cuMemUnmap", (dafi_cu_address_t base, size_t num_bytes))                                              \
    CALL(set_access, "cuMemSetAccess",                                                                                 \
         (dafi_cu_address_t base, size_t num_bytes, const dafi_cu_access_t *access, size_t count))                     \
    CALL(copy_out, "cuMemcpyDtoH_v2", (void *to, dafi_cu_address_t from, size_t num_bytes))                            \
    CALL(copy_in, "cuMemcpyHtoD_v2", (dafi_cu_address_t to, const void *from, size_t num_bytes))                       \
    CALL(event_create, "cuEventCreate", (dafi_cu_event_t * event, unsigned flags))                                     \
    CALL(event_destroy, "cuEventDestroy_v2", (dafi_cu_event_t event))                                                  \
    CALL(event_record, "cuEventRecord", (dafi_cu_event_t event, daf_cuda_stream_t stream))                             \
    CALL(event_query, "cuEventQuery", (dafi_cu_event_t event))                                                         \
    CALL(event_synchronize, "cuEventSynchronize", (dafi_cu_event_t event))                                             \
    CALL(stream_wait, "cuStreamWaitEvent", (daf_cuda_stream_t stream, dafi_cu_event_t event, unsigned flags))          \
    CALL(stream_is_capturing, "cuStreamIsCapturing", (daf_cuda_stream_t stream, int *status))                          \
    CALL(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))

typedef struct dafi_cuda {
#define DAFI_CU_MEMBER(member, name, arguments) dafi_cu_result_t(*member) arguments;
    DAFI_CU_CALLS(DAFI_CU_MEMBER)
#undef DAFI_CU_MEMBER
} dafi_cuda_t;

/* The driver, loaded at the first call; NULL: there is none here, or it lacks a call. Threads: all at once. */
const dafi_cuda_t *dafi_cuda(void);

/* The driver's number of device `ordinal`, its primary context (kept for the life of the process), and how many bytes
 * physical memory comes by there. */
typedef struct dafi_cuda_device {
    int ordinal, id;
    dafi_cu_context_t context;
    uint64_t unit_bytes, total_bytes;
} dafi_cuda_device_t;

daf_status_t dafi_cuda_device(int ordinal, dafi_cuda_device_t *device);

#endif
