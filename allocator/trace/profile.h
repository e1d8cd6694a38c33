/* The allocation profile: which stack of calls asked for the tensors that are alive, now and at the peak.
 *
 *   block    a live tensor that is followed. Those of least_bytes or more are all followed; of smaller ones, one in
 *            every least_bytes that they take together, and it stands for all of those
 *   stack    a number that `look` gave for the calls that led to a request; 0: not looked
 *   ring     the last requests and frees of followed blocks
 *   peak     bytes by stack when the blocks that were looked at took most
 *
 *   live_bytes = sum of what the followed blocks stand for = sum over the stacks
 *
 * Looking costs time and so has a budget: a share of the time that passes (MAX_SHARE). Beyond it only the largest are
 * looked at, and then none. One profile per process at a time. Threads: all at once. Fork: the child follows nothing.
 * This header is read by C and by cffi.
 */
#ifndef DAF_PROFILE_H
#define DAF_PROFILE_H

#include "os/backend.h"

#define DAF_PROFILE_STACKS 16384
#define DAF_PROFILE_INTERRUPTED 4294967295

typedef struct daf_profile_entry {
    uint64_t address, num_bytes, micros; /* since 1970 */
    uint32_t stack, is_free;
} daf_profile_entry_t;

typedef struct daf_profile_share {
    uint64_t num_bytes;
    uint32_t stack, num_blocks;
} daf_profile_share_t;

typedef struct daf_profile_state {
    uint64_t live_bytes, peak_bytes;             /* of blocks that were looked at */
    uint64_t num_followed, num_looked, num_lost; /* requests; lost: the table of blocks was full */
    uint64_t looked_ns, open_ns;                 /* time spent looking, time since the profile began */
    uint64_t peak_micros;                        /* when the peak was, since 1970 */
} daf_profile_state_t;

/* Returns a number below DAF_PROFILE_STACKS; 0: cannot be told. Called without any lock of ours. */
typedef uint32_t (*daf_look_fn)(uint64_t num_bytes);

/* DAF_INVALID: one is open already, or the sizes are 0; DAF_OUT_OF_MEMORY: no room for its tables. */
daf_status_t daf_profile_open(uint64_t least_bytes, uint32_t num_entries, daf_look_fn look);
void daf_profile_close(void);
int daf_profile_is_open(void);
void daf_profile_tell(daf_profile_state_t *state);
/* Copy what there is, at most `cap`; return how many there are. The ring: oldest first. */
uint64_t daf_profile_ring(daf_profile_entry_t *entries, uint64_t cap);
uint64_t daf_profile_blocks(daf_profile_entry_t *entries, uint64_t cap);
uint64_t daf_profile_peak(daf_profile_share_t *shares, uint64_t cap);

#endif
