/* Threads: torch's own pool, never a second one.
 *
 * torch's kernels run on an OpenMP runtime that its wheel brings along. The same runtime, found by name in the process,
 * runs ours: the caller's team is already awake, its size is what torch.set_num_threads said, and two pools never fight
 * for the same cores. All OpenMP runtimes (GNU, LLVM, Intel) offer the entry points used here. Without one in the
 * process, everything runs on the caller's thread.
 */
#ifndef DAF_THREADS_H
#define DAF_THREADS_H
#include <stdint.h>

/* cdef begin: cffi reads from here */
/* Threads that work called from this thread may use now. */
int daf_num_threads(void);

/* Caps them for this thread (0: no cap), for a thread that works beside torch's. */
void daf_limit_threads(int num_threads);
/* cdef end */

typedef void (*dafi_span_task_t)(void *context, int64_t begin, int64_t end);

/* Calls task over spans that together cover 0..count, none shorter than `grain` unless it is the only one, and returns
 * when all have ended. Spans run on the caller's thread and others of its pool; inside another parallel region, or
 * where one span is all, on the caller's alone. */
void dafi_parallel_for(int64_t count, int64_t grain, dafi_span_task_t task, void *context);
#endif
