/* Recording what is asked of an allocator, for benchmarks.replay: one text line a request.
 *
 *   Thread,Time,Action,Pointer,Size,Stream        the header line, and the columns, of RMM's logs
 *   140213,10:31:07:120034,allocate,0x7f2c00a0,4096,0
 *
 * Actions: allocate and free (tensors); stash and release (encoded activations, Pointer is a handle, Size what the
 * pages hold); step (a training step ended). One recording per process at a time. Threads: all at once.
 * Fork: the child records nothing. This header is read by C and by cffi.
 */
#ifndef DAF_TRACE_H
#define DAF_TRACE_H

#include "os/backend.h"

typedef enum daf_trace_action {
    DAF_TRACE_ALLOCATE = 0,
    DAF_TRACE_FREE = 1,
    DAF_TRACE_STASH = 2,
    DAF_TRACE_RELEASE = 3,
    DAF_TRACE_STEP = 4,
} daf_trace_action_t;

/* Start to record to a new file at `path`. DAF_SYSTEM: errno says why; DAF_INVALID: a recording is under way. */
daf_status_t daf_trace_open(const char *path);
/* Write what is left and end the recording. DAF_SYSTEM: some of it could not be written. */
daf_status_t daf_trace_close(void);
void daf_trace_record(daf_trace_action_t action, const void *pointer, uint64_t num_bytes, const void *stream);

#endif
