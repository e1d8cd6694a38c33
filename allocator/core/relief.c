/* Relief: what a request that does not fit is given, in this order: cached memory, what the owner of the arena frees
 * when asked (late compression of tensors kept exact), planes (least important first, down to the floors), spilled
 * stashes, what the front door holds back, and the budget itself where only a watcher had lowered it.
 *
 * The owner is asked by a callback, in the thread that asked for memory and without the arena's lock: it may run
 * Python, wait for the interpreter's lock, free, and make requests of its own. Those never ask again; they go on to
 * planes. No thread waits for another's callback, so two that ask at once cannot wait for each other.
 */
#include "core/core.h"

#define MAX_ASKS 64u /* per request: a callback that says "freed" and frees nothing must not hang a run */
#define STOP_SECONDS UINT64_C(5)

static _Thread_local uint32_t depth; /* callbacks of this thread on its stack */
static _Atomic int64_t num_asking;   /* callbacks of all threads */
static _Atomic bool is_stopped;

void dafi_call_end(void) {
    atomic_fetch_sub(&num_asking, 1);
    depth--;
}

/* Counted before the look at `is_stopped`, so that daf_pressure_stop sees every call that it does not prevent. */
bool dafi_call_begin(void) {
    if (depth > 0) return false;
    depth++;
    atomic_fetch_add(&num_asking, 1);
    if (!atomic_load(&is_stopped)) return true;
    dafi_call_end();
    return false;
}

static bool call(daf_pressure_fn pressure, void *context, uint64_t missing_bytes) {
    if (!dafi_call_begin()) return false;
    bool is_freed = pressure(context, missing_bytes) > 0;
    dafi_call_end();
    return is_freed;
}

/* True: something may have been freed. */
static bool ask(daf_arena_t *arena, uint64_t missing_bytes) {
    daf_pressure_fn pressure = arena->pressure;
    void *context = arena->pressure_context;
    if (!pressure) return false; /* taken away while the lock was free */
    uint64_t before = arena->tensors.live_bytes;
    arena->counts.pressure_calls++;
    arena->num_asking++; /* a callback may close the arena: it stays until the request has left */
    dafi_unlock(arena);
    bool is_freed = call(pressure, context, missing_bytes);
    dafi_lock(arena);
    arena->num_asking--;
    if (arena->tensors.live_bytes < before) arena->counts.pressure_freed_bytes += before - arena->tensors.live_bytes;
    return is_freed;
}

/* More than half of the budget is live, and the owner wants to hear of that: told once, with nothing missing. */
void dafi_tell_half(daf_arena_t *arena) {
    daf_pressure_fn pressure = arena->pressure;
    void *context = arena->pressure_context;
    if (!pressure || depth > 0) return;
    arena->wants_half = false;
    arena->num_asking++;
    dafi_unlock(arena);
    call(pressure, context, 0);
    dafi_lock(arena);
    arena->num_asking--;
}

static daf_status_t attempt_without_planes(daf_arena_t *arena, dafi_attempt_fn attempt, void *request,
                                           uint64_t num_bytes) {
    arena->spares_planes = true;
    arena->missing_bytes = num_bytes;
    daf_status_t status = attempt(arena, request);
    arena->spares_planes = false;
    return status;
}

static daf_status_t attempt_asking(daf_arena_t *arena, dafi_attempt_fn attempt, void *request, uint64_t num_bytes) {
    daf_status_t status = attempt_without_planes(arena, attempt, request, num_bytes);
    for (uint32_t i = 0; i < MAX_ASKS && status == DAF_OUT_OF_MEMORY && ask(arena, arena->missing_bytes); i++)
        status = attempt_without_planes(arena, attempt, request, num_bytes);
    return status;
}

daf_status_t dafi_request(daf_arena_t *arena, dafi_attempt_fn attempt, void *request, uint64_t num_bytes) {
    daf_status_t status = DAF_OUT_OF_MEMORY;
    if (arena->pressure && depth == 0) status = attempt_asking(arena, attempt, request, num_bytes);
    if (status == DAF_OUT_OF_MEMORY) status = attempt(arena, request);
    if (status == DAF_OUT_OF_MEMORY && arena->reclaim) {
        dafi_unlock(arena);
        arena->reclaim(arena->reclaim_context, num_bytes);
        dafi_lock(arena);
        status = attempt(arena, request);
    }
    if (status == DAF_OUT_OF_MEMORY && dafi_budget_give_way(arena, num_bytes)) status = attempt(arena, request);
    return status;
}

void daf_arena_set_pressure(daf_arena_t *arena, daf_pressure_fn pressure, void *context) {
    dafi_lock(arena);
    arena->pressure = pressure;
    arena->pressure_context = context;
    dafi_unlock(arena);
}

void daf_arena_want_half(daf_arena_t *arena, int is_wanted) {
    dafi_lock(arena);
    arena->wants_half = is_wanted != 0;
    dafi_unlock(arena);
}

void daf_pressure_stop(void) {
    uint64_t until_ns = dafi_monotonic_ns() + STOP_SECONDS * 1000000000u;
    atomic_store(&is_stopped, true);
    while (atomic_load(&num_asking) > (int64_t)depth && dafi_monotonic_ns() < until_ns) dafi_sleep_ns(100000);
}

void dafi_relief_orphan(daf_arena_t *arena) {
    arena->pressure = NULL;
    arena->wants_half = arena->spares_planes = false;
    atomic_store(&num_asking, (int64_t)depth);
}
