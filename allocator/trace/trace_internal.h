/* The way in for the arena and its doors: one load and one branch while nothing is recorded. */
#ifndef DAFI_TRACE_H
#define DAFI_TRACE_H

#include "trace/trace.h"

extern int dafi_is_tracing;

static inline void dafi_trace(daf_trace_action_t action, const void *pointer, uint64_t num_bytes, const void *stream) {
    if (__builtin_expect(__atomic_load_n(&dafi_is_tracing, __ATOMIC_RELAXED), 0))
        daf_trace_record(action, pointer, num_bytes, stream);
}

#endif
