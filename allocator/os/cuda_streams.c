#include "os/cuda_streams.h"

#include <stdlib.h>

static dafi_cuda_block_t **bucket(const dafi_streams_t *streams, const void *address) {
    uint64_t hash = ((uintptr_t)address >> 6) * 0x9E3779B97F4A7C15u;
    return (dafi_cuda_block_t **)&streams->live[hash >> 52];
}

void dafi_live_add(dafi_streams_t *streams, dafi_cuda_block_t *block) {
    dafi_cuda_block_t **head = bucket(streams, block->address);
    block->next = *head;
    *head = block;
}

dafi_cuda_block_t *dafi_live_find(const dafi_streams_t *streams, const void *address) {
    dafi_cuda_block_t *block = *bucket(streams, address);
    while (block != NULL && block->address != address) block = block->next;
    return block;
}

dafi_cuda_block_t *dafi_live_take(dafi_streams_t *streams, const void *address) {
    dafi_cuda_block_t **link = bucket(streams, address);
    while (*link != NULL && (*link)->address != address) link = &(*link)->next;
    dafi_cuda_block_t *block = *link;
    if (block != NULL) *link = block->next;
    return block;
}

void dafi_block_add_use(dafi_cuda_block_t *block, daf_cuda_stream_t stream) {
    for (dafi_use_t *use = block->uses; use != NULL; use = use->next)
        if (use->stream == stream) return;
    dafi_use_t *use = malloc(sizeof(*use));
    block->is_shared |= stream != block->stream;
    if (use == NULL) {
        block->is_lost = 1;
        return;
    }
    *use = (dafi_use_t){block->uses, stream, NULL};
    block->uses = use;
}

static void drop_uses(dafi_cuda_block_t *block) {
    while (block->uses != NULL) {
        dafi_use_t *use = block->uses;
        block->uses = use->next;
        if (use->event != NULL) dafi_cuda()->event_destroy(use->event);
        free(use);
    }
    block->is_shared = 0;
}

void dafi_block_delete(dafi_cuda_block_t *block) {
    drop_uses(block);
    free(block);
}

/* A block much larger than the request is worth more elsewhere. */
static int fits(const dafi_cuda_block_t *block, uint64_t num_bytes, daf_cuda_stream_t stream) {
    return block->stream == stream && !block->is_shared && !block->is_lost && block->block_bytes >= num_bytes &&
           block->block_bytes - num_bytes <= num_bytes / 4 + 4096;
}

dafi_cuda_block_t *dafi_list_take_fit(dafi_cuda_block_t **list, uint64_t num_bytes, daf_cuda_stream_t stream) {
    dafi_cuda_block_t **best = NULL;
    for (dafi_cuda_block_t **link = list; *link != NULL; link = &(*link)->next)
        if (fits(*link, num_bytes, stream) && (best == NULL || (*link)->block_bytes < (*best)->block_bytes))
            best = link;
    if (best == NULL) return NULL;
    dafi_cuda_block_t *block = *best;
    *best = block->next;
    drop_uses(block);
    return block;
}

static int record(dafi_streams_t *streams, dafi_use_t *use) {
    const dafi_cuda_t *cuda = dafi_cuda();
    dafi_cu_event_t event;
    if (cuda->event_create(&event, DAFI_CU_EVENT_NO_TIMING) != DAFI_CU_SUCCESS) return 0;
    if (cuda->event_record(event, use->stream) != DAFI_CU_SUCCESS) {
        cuda->event_destroy(event);
        return 0;
    }
    use->event = event;
    streams->counts.num_events++;
    return 1;
}

int dafi_block_is_done(dafi_streams_t *streams, dafi_cuda_block_t *block, int wait) {
    const dafi_cuda_t *cuda = dafi_cuda();
    int is_done = !block->is_lost;
    for (dafi_use_t *use = block->uses; use != NULL; use = use->next)
        if (use->event == NULL && !record(streams, use)) is_done = 0;
    for (dafi_use_t *use = block->uses; use != NULL && is_done; use = use->next) {
        is_done = cuda->event_query(use->event) == DAFI_CU_SUCCESS;
        if (is_done || !wait) continue;
        streams->counts.num_synchronizes++;
        is_done = cuda->event_synchronize(use->event) == DAFI_CU_SUCCESS;
    }
    return is_done;
}
