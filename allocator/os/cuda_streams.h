/* Which blocks of a device are out, and which are freed but maybe still in use by a stream. */
#ifndef DAFI_CUDA_STREAMS_H
#define DAFI_CUDA_STREAMS_H

#include "os/cuda_driver.h"

#define DAFI_NUM_BUCKETS 4096

/* One stream that has to pass a point before a block is free. No event: it could not be recorded yet, try again. */
typedef struct dafi_use {
    struct dafi_use *next;
    daf_cuda_stream_t stream;
    dafi_cu_event_t event;
} dafi_use_t;

typedef struct dafi_cuda_block {
    struct dafi_cuda_block *next; /* in its bucket, or in the list it is on */
    void *address;
    uint64_t block_bytes, requested_bytes;
    daf_cuda_stream_t stream; /* the one it was handed out for */
    dafi_use_t *uses;         /* further streams named by daf_record_stream; once freed: what to wait for */
    int is_captured;
    int is_shared; /* a stream other than its own has used it */
    int is_lost;   /* a use could not be noted: nobody knows when it is free */
} dafi_cuda_block_t;

/* Guarded by its lock, which is taken before the arena's, never after. */
typedef struct dafi_streams {
    dafi_cuda_block_t *live[DAFI_NUM_BUCKETS]; /* by address */
    dafi_cuda_block_t *pending;                /* freed by torch, oldest last */
    dafi_cuda_block_t *captured;               /* freed, kept for the graphs that know their addresses */
    daf_cuda_counts_t counts;
} dafi_streams_t;

void dafi_live_add(dafi_streams_t *streams, dafi_cuda_block_t *block);
dafi_cuda_block_t *dafi_live_find(const dafi_streams_t *streams, const void *address);
dafi_cuda_block_t *dafi_live_take(dafi_streams_t *streams, const void *address); /* NULL: not ours */

/* `stream` has used the block: not free before that stream has come to where it is when the block is freed. */
void dafi_block_add_use(dafi_cuda_block_t *block, daf_cuda_stream_t stream);
void dafi_block_delete(dafi_cuda_block_t *block); /* its events too */

/* Take the smallest block of `list` that `stream` may use at once for `num_bytes`; NULL: none. */
dafi_cuda_block_t *dafi_list_take_fit(dafi_cuda_block_t **list, uint64_t num_bytes, daf_cuda_stream_t stream);

/* Record what is not recorded yet; 1: every stream has passed. `wait`: wait until they have. */
int dafi_block_is_done(dafi_streams_t *streams, dafi_cuda_block_t *block, int wait);

#endif
