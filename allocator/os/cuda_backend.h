/* What the CUDA front door and the CUDA backend share. */
#ifndef DAFI_CUDA_BACKEND_H
#define DAFI_CUDA_BACKEND_H

#include "os/cuda_driver.h"

/* Called under the arena's lock before memory is taken away: returns when the device no longer uses what was freed, or
 * not DAF_OK to keep the memory where it is. Must not call the arena. */
typedef daf_status_t (*dafi_quiesce_fn)(void *context);
void dafi_backend_cuda_set_quiesce(int device, dafi_quiesce_fn quiesce, void *context);

/* Make the device's context current for this thread, and take it off again. 0: refused. */
int dafi_backend_cuda_enter(int device);
void dafi_backend_cuda_leave(void);

#endif
