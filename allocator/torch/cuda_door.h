/* The CUDA front door: the functions that torch's CUDAPluggableAllocator calls, over one arena per device.
 *
 *   home stream   the first stream seen on a device (torch's default one). Its frees go back to the arena at once, and
 *                 whatever it is given next is ordered behind them by the stream itself
 *   side stream   any other. Memory that comes from the arena is ordered behind the home stream's work with an event;
 * memory that a side stream frees is used again by that stream at once, and by others once its event has come pending
 * freed by torch, not yet by the device: events say when captured      handed out while a CUDA graph was being
 * recorded: the graph will use the address again, so it is kept
 *
 * Physical memory is taken away only behind the home stream's work, so nothing is unmapped while in use.
 * Threads: all at once. The library loads without CUDA; then daf_malloc returns NULL. This header is read by C and by
 * cffi.
 */
#ifndef DAF_CUDA_DOOR_H
#define DAF_CUDA_DOOR_H

#include "arena.h"
#include "stats/meter.h"

#define DAF_MAX_DEVICES 64

typedef struct daf_cuda_stream *daf_cuda_stream_t;

/* What torch 2.13 calls, with its signatures (void *, size_t, int, cudaStream_t). */
void *daf_malloc(size_t num_bytes, int device, daf_cuda_stream_t stream);
void daf_free(void *block, size_t num_bytes, int device, daf_cuda_stream_t stream);
void daf_record_stream(void *block, daf_cuda_stream_t stream);
void daf_init(int num_devices);
void daf_reset(void); /* torch.cuda.empty_cache() */
void daf_memory_fraction(double fraction, int device);
void *daf_base_alloc(void *block, size_t *num_bytes);

/* Load the driver: NULL for libcuda.so.1, or the path of another library with the same calls. */
daf_status_t daf_cuda_load(const char *path);
const char *daf_cuda_why_not(void); /* "" once loaded */

/* Device memory for daf_arena_open(). NULL: no such device here; daf_cuda_why_not() may say more. Lives for ever. */
const daf_backend_t *daf_backend_cuda(int device);
uint64_t daf_cuda_total_bytes(int device); /* 0: no such device */

/* Serve `device` from `arena`, which was opened on that device's backend. A device without an arena gets one of its own
 * at the first request: of this budget (0: nine tenths of the device) and page size (0, or smaller than the device's
 * units allow: the default). */
daf_status_t daf_cuda_attach(int device, daf_arena_t *arena);
void daf_cuda_set_own(uint64_t budget_bytes, uint32_t page_bytes);
/* Give up the arena, waiting for the device first. Blocks still out are gone: only for the end, and for tests. */
void daf_cuda_detach(int device);
daf_arena_t *daf_cuda_arena(int device); /* NULL: none yet */
/* The device's home stream, which planes are written and read on. 0: none yet, nothing was asked for. */
int daf_cuda_home(int device, daf_cuda_stream_t *stream);
void daf_cuda_meter(int device, daf_meter_t *copy);
void daf_cuda_reset_peaks(int device);

typedef struct daf_cuda_counts {
    uint64_t pending_blocks, pending_bytes, captured_blocks, captured_bytes;
    uint64_t num_events, num_waits, num_synchronizes; /* events recorded, streams told to wait, waits of the host */
} daf_cuda_counts_t;
void daf_cuda_counts(int device, daf_cuda_counts_t *counts);

/* torch takes NULL for memory, so a failure must leave daf_malloc another way: `raise` throws torch's own exception and
 * does not return. Called without any lock. NULL: daf_malloc returns NULL. */
typedef void (*daf_raise_fn)(const char *report);
void daf_cuda_set_raise(daf_raise_fn raise);

/* Told once for each kind of thing that DAF cannot do on CUDA. Called without any lock. */
typedef enum daf_cuda_notice { DAF_NOTICE_CAPTURE = 0, DAF_NUM_NOTICES } daf_cuda_notice_t;
typedef void (*daf_notice_fn)(daf_cuda_notice_t notice);
void daf_cuda_set_notice(daf_notice_fn notice);

#endif
