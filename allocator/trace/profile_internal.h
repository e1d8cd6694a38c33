/* The way in for the doors: one load and one branch while nothing is profiled. */
#ifndef DAFI_PROFILE_H
#define DAFI_PROFILE_H

#include "trace/profile.h"

extern int dafi_is_profiling;

void dafi_profile_taken(const void *block, uint64_t num_bytes);
void dafi_profile_given(const void *block);

static inline int dafi_profiles(void) {
    return __builtin_expect(__atomic_load_n(&dafi_is_profiling, __ATOMIC_RELAXED), 0);
}

#endif
