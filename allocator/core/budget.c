/* The budget: who may commit, what goes when it is tight, and what becomes of a change.
 *
 * An attempt that does not fit takes, in this order: cached memory, planes (least important first, down to the floors),
 * spilled stashes. Whether all of that would suffice is known beforehand from counters, so an attempt that must fail
 * drops nothing. What else a request is given, relief.c says.
 */
#include "core/core.h"

#include <stdio.h>
#include <string.h>

#define MAX_GROWTH_BYTES (UINT64_C(256) << 20)

/* What a request may fill. */
static uint64_t allowed_bytes(const daf_arena_t *arena) {
    return dafi_max(arena->budget_bytes, arena->grace_bytes);
}

static bool fits(const daf_arena_t *arena, uint64_t num_bytes) {
    return arena->resident_bytes + num_bytes <= allowed_bytes(arena);
}

static uint64_t over_by(const daf_arena_t *arena, uint64_t num_bytes) {
    uint64_t wanted = arena->resident_bytes + num_bytes;
    return wanted > allowed_bytes(arena) ? wanted - allowed_bytes(arena) : 0;
}

static uint64_t dirty_page_bytes(const daf_arena_t *arena) {
    return arena->pages.num_dirty << arena->pages.page_shift;
}

static uint64_t free_tensor_bytes(const daf_arena_t *arena) {
    return arena->tensors.trimmable_bytes + arena->tensors.idle_bytes;
}

/* What eviction, and where allowed spilling, can free. */
static uint64_t yieldable_bytes(const daf_arena_t *arena) {
    if (arena->spares_planes) return 0;
    return arena->spill_file >= 0 ? arena->indexed_bytes : arena->droppable_bytes;
}

static bool yield_one(daf_arena_t *arena, dafi_reason_t reason) {
    return !arena->spares_planes && (dafi_evict_one(arena, reason) || dafi_spill_one(arena));
}

/* One event for all planes that one request cost. */
static void tell_evictions(daf_arena_t *arena, dafi_reason_t reason, uint64_t count_before, uint64_t bytes_before) {
    static const char *const names[DAFI_NUM_REASONS] = {"tensor", "stash", "budget", "hand"};
    uint64_t count = arena->counts.evictions[reason] - count_before;
    if (count == 0) return;
    dafi_event(arena, DAFI_EVENT_EVICT, 0, arena->counts.evicted_bytes - bytes_before, (double)count, names[reason]);
}

/* Is `over_bytes` at most what can be found? What is missing is noted for whoever may be asked for it. */
static bool can_cover(daf_arena_t *arena, uint64_t over_bytes, uint64_t free_bytes) {
    uint64_t found_bytes = free_bytes + yieldable_bytes(arena);
    if (over_bytes > found_bytes) arena->missing_bytes = over_bytes - found_bytes;
    return over_bytes <= found_bytes;
}

bool dafi_could_admit(daf_arena_t *arena, uint64_t num_bytes, uint32_t keep) {
    uint64_t free_bytes = free_tensor_bytes(arena) - dafi_extent_trimmable(arena, keep) + dirty_page_bytes(arena);
    return can_cover(arena, over_by(arena, num_bytes), free_bytes);
}

bool dafi_make_room(daf_arena_t *arena, uint64_t num_bytes, uint32_t keep) {
    if (fits(arena, num_bytes)) return true;
    uint64_t count = arena->counts.evictions[DAFI_FOR_TENSOR], bytes = arena->counts.evicted_bytes;
    dafi_pages_trim(arena, over_by(arena, num_bytes));
    if (!fits(arena, num_bytes)) dafi_tensors_trim(arena, over_by(arena, num_bytes), keep);
    while (!fits(arena, num_bytes) && yield_one(arena, DAFI_FOR_TENSOR))
        dafi_pages_trim(arena, over_by(arena, num_bytes));
    tell_evictions(arena, DAFI_FOR_TENSOR, count, bytes);
    return fits(arena, num_bytes);
}

static uint64_t missing_page_bytes(const daf_arena_t *arena, uint64_t num_pages) {
    const dafi_pages_t *zone = &arena->pages;
    uint64_t missing = num_pages > zone->num_dirty ? num_pages - zone->num_dirty : 0;
    return dafi_round_up(missing, zone->unit_pages) << zone->page_shift;
}

/* Evict until `num_pages` would fit, counting `lendable_bytes` that the tensor zone has free. */
static void evict_for_pages(daf_arena_t *arena, uint64_t num_pages, uint64_t lendable_bytes) {
    uint64_t count = arena->counts.evictions[DAFI_FOR_STASH], bytes = arena->counts.evicted_bytes;
    while (num_pages > arena->pages.num_dirty && over_by(arena, missing_page_bytes(arena, num_pages)) > lendable_bytes)
        if (!yield_one(arena, DAFI_FOR_STASH)) break;
    tell_evictions(arena, DAFI_FOR_STASH, count, bytes);
}

/* Commit `num_pages` more; what they cost beyond the budget comes from the tensor zone's free memory. */
static bool commit_pages(daf_arena_t *arena, uint64_t num_pages) {
    dafi_hole_t hole;
    hole.num_runs = 0;
    uint64_t before = arena->resident_bytes;
    if (!dafi_pages_commit(arena, num_pages, &hole)) return false;
    dafi_fill(arena, &hole, arena->resident_bytes - before, false);
    if (over_by(arena, 0)) dafi_tensors_trim(arena, over_by(arena, 0), 0);
    if (over_by(arena, 0)) dafi_pages_trim(arena, over_by(arena, 0)); /* not to be had: back again */
    return true;
}

bool dafi_admit_pages(daf_arena_t *arena, uint64_t num_pages) {
    const dafi_pages_t *zone = &arena->pages;
    if (num_pages <= zone->num_dirty) return true;
    uint64_t over = over_by(arena, missing_page_bytes(arena, num_pages));
    if (!can_cover(arena, over, free_tensor_bytes(arena))) return false;
    if (over && !arena->backend.move) dafi_tensors_trim(arena, over, 0);
    uint64_t lendable = arena->backend.move ? free_tensor_bytes(arena) : 0;
    evict_for_pages(arena, num_pages, lendable);
    if (num_pages <= zone->num_dirty) return true;
    if (over_by(arena, missing_page_bytes(arena, num_pages)) > lendable) return false;
    return commit_pages(arena, num_pages - zone->num_dirty) && num_pages <= zone->num_dirty;
}

uint64_t dafi_shrink_to(daf_arena_t *arena, uint64_t target_bytes, dafi_reason_t reason) {
    uint64_t count = arena->counts.evictions[reason], bytes = arena->counts.evicted_bytes;
    while (arena->resident_bytes > target_bytes) {
        uint64_t given = dafi_pages_trim(arena, arena->resident_bytes - target_bytes);
        if (arena->resident_bytes > target_bytes)
            given += dafi_tensors_trim(arena, arena->resident_bytes - target_bytes, 0);
        if (given == 0 && !yield_one(arena, reason)) break;
    }
    tell_evictions(arena, reason, count, bytes);
    return arena->resident_bytes > target_bytes ? arena->resident_bytes - target_bytes : 0;
}

void dafi_after_free(daf_arena_t *arena) {
    if (arena->resident_bytes > arena->budget_bytes) dafi_shrink_to(arena, arena->budget_bytes, DAFI_FOR_BUDGET);
}

/* What a budget has to hold. Where somebody compresses kept tensors when asked, a quarter of their bytes is left of
 * them: 8 of 32 bits, or some exact ones and fewer bits of the others. */
static uint64_t firm_bytes(const daf_arena_t *arena) {
    uint64_t held = dafi_held_bytes(arena);
    if (!arena->pressure) return held;
    return held - dafi_min(arena->kept_bytes, arena->tensors.live_bytes) / 4 * 3;
}

dafi_peaks_t dafi_now(const daf_arena_t *arena) {
    uint64_t tensor = arena->tensors.live_bytes, plane = dafi_plane_bytes(arena);
    return (dafi_peaks_t){
        .resident = arena->resident_bytes,
        .tensor = tensor,
        .plane = plane,
        .live = tensor + plane,
        .raw = arena->raw_bytes + arena->other_raw_bytes,
        .saved = plane + arena->kept_bytes,
        .held = dafi_held_bytes(arena),
        .firm = firm_bytes(arena),
    };
}

static void raise_peaks(dafi_peaks_t *peaks, const dafi_peaks_t *now) {
    peaks->resident = dafi_max(peaks->resident, now->resident);
    peaks->tensor = dafi_max(peaks->tensor, now->tensor);
    peaks->plane = dafi_max(peaks->plane, now->plane);
    peaks->live = dafi_max(peaks->live, now->live);
    peaks->raw = dafi_max(peaks->raw, now->raw);
    peaks->saved = dafi_max(peaks->saved, now->saved);
    peaks->held = dafi_max(peaks->held, now->held);
    peaks->firm = dafi_max(peaks->firm, now->firm);
}

void dafi_note(daf_arena_t *arena) {
    dafi_assert_internal(dafi_held_bytes(arena) <= arena->resident_bytes);
    dafi_peaks_t now = dafi_now(arena);
    raise_peaks(&arena->peaks, &now);
    raise_peaks(&arena->step, &now);
    arena->decay.low_cached_bytes = dafi_min(arena->decay.low_cached_bytes, dafi_cached_bytes(arena));
}

uint64_t dafi_least_budget(const daf_arena_t *arena, uint64_t num_bytes) {
    uint64_t held = dafi_held_bytes(arena);
    if (arena->spill_file >= 0) held -= arena->indexed_bytes - arena->droppable_bytes;
    return held + dafi_round_up(num_bytes, arena->backend.unit_bytes);
}

uint64_t dafi_growth(daf_arena_t *arena, uint64_t num_bytes, uint64_t limit_bytes) {
    if (!arena->backend.is_costly) return num_bytes;
    uint64_t unit = arena->backend.unit_bytes, room = allowed_bytes(arena) - arena->resident_bytes;
    uint64_t ahead = dafi_min(arena->growth_bytes, dafi_min(room, limit_bytes)) / unit * unit;
    uint64_t cap = dafi_min(MAX_GROWTH_BYTES, dafi_max(unit, arena->resident_bytes / 8));
    arena->growth_bytes = dafi_min(arena->growth_bytes * 2, cap); /* demand goes on: larger steps, fewer calls */
    return dafi_max(num_bytes, ahead);
}

void dafi_decay_start(daf_arena_t *arena) {
    arena->decay =
        (dafi_decay_t){.low_cached_bytes = UINT64_MAX, .unused_bytes = UINT64_MAX, .patience_steps = DAFI_LOOK_STEPS};
}

/* After a look at which memory was given back: was it wanted again at once? */
static void learn_patience(daf_arena_t *arena) {
    dafi_decay_t *decay = &arena->decay;
    uint64_t grown = arena->counts.grown_bytes - decay->grown_bytes;
    if (decay->trimmed_bytes && grown >= decay->trimmed_bytes / 2)
        decay->patience_steps = dafi_min(decay->patience_steps * 2, DAFI_MAX_PATIENCE);
    else if (decay->trimmed_bytes)
        decay->patience_steps = dafi_max(decay->patience_steps / 2, DAFI_LOOK_STEPS);
    if (grown == 0) arena->growth_bytes = dafi_max(arena->growth_bytes / 2, arena->backend.unit_bytes);
    decay->grown_bytes = arena->counts.grown_bytes;
    decay->trimmed_bytes = 0;
}

static bool is_surplus_due(const daf_arena_t *arena) {
    const dafi_decay_t *decay = &arena->decay;
    bool is_large = decay->unused_bytes >= arena->resident_bytes / 8;
    return decay->unused_steps >= decay->patience_steps || (is_large && decay->unused_steps >= DAFI_LARGE_STEPS);
}

void dafi_decay(daf_arena_t *arena) {
    dafi_decay_t *decay = &arena->decay;
    learn_patience(arena);
    uint64_t surplus = dafi_min(decay->low_cached_bytes, dafi_cached_bytes(arena));
    bool is_worth_it = surplus >= dafi_max(arena->resident_bytes / 64, 1);
    decay->low_cached_bytes = UINT64_MAX;
    decay->last_step = arena->counts.steps;
    decay->unused_bytes = is_worth_it ? dafi_min(decay->unused_bytes, surplus) : UINT64_MAX;
    decay->unused_steps = is_worth_it ? decay->unused_steps + DAFI_LOOK_STEPS : 0;
    if (!is_worth_it || !is_surplus_due(arena)) return;
    decay->trimmed_bytes = dafi_pages_trim(arena, decay->unused_bytes);
    if (decay->trimmed_bytes < decay->unused_bytes)
        decay->trimmed_bytes += dafi_tensors_trim(arena, decay->unused_bytes - decay->trimmed_bytes, 0);
    decay->unused_bytes = UINT64_MAX;
    decay->unused_steps = 0;
    dafi_event(arena, DAFI_EVENT_TRIM, 0, decay->trimmed_bytes, 0, "unused");
}

static void refuse(daf_outcome_t *outcome, uint64_t least_bytes, const char *reason) {
    *outcome = (daf_outcome_t){.state = DAF_REFUSED, .least_bytes = least_bytes};
    snprintf(outcome->reason, sizeof outcome->reason, "%s", reason);
}

void dafi_budget_set(daf_arena_t *arena, uint64_t num_bytes, bool force, daf_outcome_t *outcome) {
    uint64_t needed = arena->last_step.firm;
    if (num_bytes < DAF_MIN_BUDGET_BYTES) {
        refuse(outcome, dafi_max(needed, DAF_MIN_BUDGET_BYTES), "smaller than any arena can be");
        return;
    }
    if (!force && num_bytes < needed) {
        refuse(outcome, needed, "the last step held more than this in tensors, pinned stashes and floors");
        return;
    }
    /* What a step keeps exact was planned for the budget of before: it may be finished under that one. */
    bool is_begun = arena->pressure && arena->kept_bytes > 0 && num_bytes < arena->last_step.held;
    arena->grace_bytes = is_begun ? dafi_max(arena->budget_bytes, arena->grace_bytes) : 0;
    arena->budget_bytes = num_bytes;
    uint64_t over = dafi_shrink_to(arena, num_bytes, DAFI_FOR_BUDGET);
    arena->pending_bytes = over ? num_bytes : 0;
    *outcome = (daf_outcome_t){.state = over ? DAF_PENDING : DAF_APPLIED, .least_bytes = dafi_least_budget(arena, 0)};
    if (over)
        snprintf(outcome->reason, sizeof outcome->reason,
                 "%llu bytes in use cannot be dropped; they go as they are freed", (unsigned long long)over);
    dafi_event(arena, DAFI_EVENT_RESIZE, 0, num_bytes, (double)over, over ? "pending" : "applied");
}

void dafi_budget_end_grace(daf_arena_t *arena) {
    if (arena->grace_bytes == 0) return;
    arena->grace_bytes = 0;
    dafi_after_free(arena);
}

bool dafi_budget_settle(daf_arena_t *arena) {
    if (arena->pending_bytes == 0 || arena->resident_bytes > arena->budget_bytes) return false;
    arena->pending_bytes = 0;
    dafi_event(arena, DAFI_EVENT_RESIZE, 0, arena->budget_bytes, 0, "applied");
    return true;
}

bool dafi_budget_give_way(daf_arena_t *arena, uint64_t num_bytes) {
    uint64_t least = dafi_least_budget(arena, num_bytes);
    if (least <= arena->budget_bytes || least > arena->ceiling_bytes) return false;
    arena->budget_bytes = least;
    arena->pending_bytes = 0;
    arena->counts.budget_raises++;
    dafi_event(arena, DAFI_EVENT_RESIZE, 0, least, 0, "raised");
    return true;
}

void daf_arena_set_budget(daf_arena_t *arena, uint64_t num_bytes, int force, daf_outcome_t *outcome) {
    dafi_lock(arena);
    dafi_budget_set(arena, num_bytes, force != 0, outcome);
    if (outcome->state != DAF_REFUSED) arena->ceiling_bytes = 0; /* the owner's word is kept */
    dafi_assert_expensive(dafi_is_valid(arena, NULL, 0));
    dafi_unlock(arena);
}

uint64_t daf_arena_trim(daf_arena_t *arena, uint64_t max_bytes) {
    dafi_lock(arena);
    uint64_t given = dafi_pages_trim(arena, max_bytes);
    if (given < max_bytes) given += dafi_tensors_trim(arena, max_bytes - given, 0);
    dafi_unlock(arena);
    return given;
}
