/* The tensor zone: contiguous extents in one address range, best fit, merged with free neighbours at once.
 *
 *   base                                                                     base + span
 *   | live | dirty | live | live | clean | dirty | clean . . . . . . . . . . . . . . . |
 *
 * Free extents stand in two trees by (bytes, offset): dirty ones are memory already paid for, clean ones addresses
 * only. A request takes the best dirty fit, the last extent only if no other holds it; failing that, a large dirty
 * extent grown into a clean neighbour, so that least is committed; failing that, the best clean fit. What is committed
 * so is paid for with the memory of other dirty extents, where the backend can move it. Which extent a block belongs to
 * is kept per granule outside the memory itself, which may be a GPU's.
 */
#include "core/core.h"

#include <string.h>

#define NUM_GROWTH_CANDIDATES 8 /* dirty extents looked at, from the largest, before committing afresh */
#define MAX_EXTENTS (1u << 24)

static dafi_node_t *node(const dafi_tensors_t *zone, uint32_t id) {
    return dafi_table_at(&zone->nodes, id);
}

static uint32_t owner_at(const dafi_tensors_t *zone, uint64_t offset) {
    return zone->owner[offset / DAFI_GRANULE];
}

static void set_owner(dafi_tensors_t *zone, uint32_t id) {
    const dafi_extent_t *extent = dafi_extent(zone, id);
    zone->owner[extent->offset / DAFI_GRANULE] = id;
    zone->owner[(extent->offset + extent->num_bytes) / DAFI_GRANULE - 1] = id;
}

/* Bytes of whole units inside an extent: what decommitting it would give. */
static uint64_t inner_bytes(const daf_arena_t *arena, const dafi_extent_t *extent, uint64_t *start) {
    uint64_t unit = arena->backend.unit_bytes, end = (extent->offset + extent->num_bytes) / unit * unit;
    *start = dafi_round_up(extent->offset, unit);
    return end > *start ? end - *start : 0;
}

uint64_t dafi_extent_trimmable(const daf_arena_t *arena, uint32_t id) {
    uint64_t start;
    return id ? inner_bytes(arena, dafi_extent(&arena->tensors, id), &start) : 0;
}

static void tree_add(daf_arena_t *arena, uint32_t id) {
    dafi_tensors_t *zone = &arena->tensors;
    dafi_extent_t *extent = dafi_extent(zone, id);
    uint64_t start;
    dafi_assert(extent->state == DAFI_DIRTY || extent->state == DAFI_CLEAN);
    dafi_assert(extent->num_bytes > 0 && extent->num_bytes % DAFI_GRANULE == 0);
    node(zone, id)->key = extent->num_bytes;
    node(zone, id)->tie = extent->offset;
    dafi_tree_insert(extent->state == DAFI_DIRTY ? &zone->dirty : &zone->clean, id);
    if (extent->state != DAFI_DIRTY) return;
    zone->dirty_bytes += extent->num_bytes;
    zone->trimmable_bytes += inner_bytes(arena, extent, &start);
}

static void tree_remove(daf_arena_t *arena, uint32_t id) {
    dafi_tensors_t *zone = &arena->tensors;
    dafi_extent_t *extent = dafi_extent(zone, id);
    uint64_t start;
    dafi_tree_erase(extent->state == DAFI_DIRTY ? &zone->dirty : &zone->clean, id);
    if (extent->state != DAFI_DIRTY) return;
    zone->dirty_bytes -= extent->num_bytes;
    zone->trimmable_bytes -= inner_bytes(arena, extent, &start);
}

/* What is cut into three needs two more records. Known before anything is changed, so that nothing has to be undone. */
static bool can_cut(const dafi_tensors_t *zone) {
    return dafi_table_has(&zone->extents, 2);
}

/* 0: the table is full. */
static uint32_t make_extent(dafi_tensors_t *zone, uint64_t offset, uint64_t num_bytes, uint32_t state) {
    uint32_t id = dafi_table_take(&zone->extents);
    if (id == 0) return 0;
    *dafi_extent(zone, id) = (dafi_extent_t){.offset = offset, .num_bytes = num_bytes, .state = state};
    set_owner(zone, id);
    return id;
}

static void drop_extent(dafi_tensors_t *zone, uint32_t id) {
    dafi_extent(zone, id)->state = DAFI_GONE;
    dafi_table_give(&zone->extents, id);
}

static uint32_t neighbour(const dafi_tensors_t *zone, uint32_t id, bool after) {
    const dafi_extent_t *extent = dafi_extent(zone, id);
    if (after) {
        uint64_t end = extent->offset + extent->num_bytes;
        return end < zone->span_bytes ? owner_at(zone, end) : 0;
    }
    return extent->offset ? owner_at(zone, extent->offset - 1) : 0;
}

static bool has_state(const dafi_tensors_t *zone, uint32_t id, uint32_t state) {
    return id && dafi_extent(zone, id)->state == state;
}

/* Put a free extent into its tree, merged with neighbours of the same state. */
static uint32_t settle(daf_arena_t *arena, uint32_t id) {
    dafi_tensors_t *zone = &arena->tensors;
    dafi_extent_t *extent = dafi_extent(zone, id);
    uint32_t before = neighbour(zone, id, false), after = neighbour(zone, id, true);
    if (has_state(zone, before, extent->state)) {
        tree_remove(arena, before);
        extent->offset = dafi_extent(zone, before)->offset;
        extent->num_bytes += dafi_extent(zone, before)->num_bytes;
        drop_extent(zone, before);
    }
    if (has_state(zone, after, extent->state)) {
        tree_remove(arena, after);
        extent->num_bytes += dafi_extent(zone, after)->num_bytes;
        drop_extent(zone, after);
    }
    set_owner(zone, id);
    tree_add(arena, id);
    dafi_assert_internal(!has_state(zone, neighbour(zone, id, false), extent->state));
    dafi_assert_internal(!has_state(zone, neighbour(zone, id, true), extent->state));
    return id;
}

/* Cut `id` (in no tree, not free) after `num_bytes`; the rest becomes dirty. */
static bool split(daf_arena_t *arena, uint32_t id, uint64_t num_bytes) {
    dafi_tensors_t *zone = &arena->tensors;
    dafi_extent_t *extent = dafi_extent(zone, id);
    dafi_assert(num_bytes <= extent->num_bytes);
    uint64_t rest = extent->num_bytes - num_bytes;
    if (rest == 0) return true;
    uint32_t other = make_extent(zone, extent->offset + num_bytes, rest, DAFI_DIRTY);
    if (other == 0) return false;
    extent->num_bytes = num_bytes;
    set_owner(zone, id);
    settle(arena, other);
    return true;
}

static void prefer_huge(daf_arena_t *arena, const dafi_extent_t *extent) {
    const daf_backend_t *backend = &arena->backend;
    if (backend->prefer_huge)
        backend->prefer_huge(backend->self, arena->tensors.base + extent->offset, extent->num_bytes);
}

/* Turn [offset, offset + num_bytes) of a clean extent dirty: whole units, room for them in the budget. */
static bool commit_range(daf_arena_t *arena, uint32_t id, uint64_t offset, uint64_t num_bytes) {
    dafi_tensors_t *zone = &arena->tensors;
    if (!can_cut(zone)) return false;
    if (arena->backend.commit(arena->backend.self, zone->base + offset, num_bytes) != DAF_OK) return false;
    dafi_extent_t *extent = dafi_extent(zone, id);
    dafi_assert(extent->state == DAFI_CLEAN && offset >= extent->offset);
    dafi_assert(offset + num_bytes <= extent->offset + extent->num_bytes);
    uint64_t before = offset - extent->offset, after = extent->num_bytes - before - num_bytes;
    tree_remove(arena, id);
    *extent = (dafi_extent_t){.offset = offset, .num_bytes = num_bytes, .state = DAFI_DIRTY};
    set_owner(zone, id);
    if (before) settle(arena, make_extent(zone, offset - before, before, DAFI_CLEAN));
    if (after) settle(arena, make_extent(zone, offset + num_bytes, after, DAFI_CLEAN));
    arena->resident_bytes += num_bytes;
    arena->counts.grows++;
    arena->counts.grown_bytes += num_bytes;
    zone->top_bytes = dafi_max(zone->top_bytes, offset + num_bytes);
    prefer_huge(arena, dafi_extent(zone, settle(arena, id)));
    return true;
}

typedef struct growth {
    uint32_t dirty; /* grown into a neighbour; 0: none */
    uint32_t clean;
    bool after; /* the clean extent follows the dirty one */
    uint64_t missing_bytes;
} growth_t;

/* The way to `num_bytes` in one piece that commits least, among the largest dirty extents and the best clean fit. */
static growth_t plan_growth(const daf_arena_t *arena, uint64_t num_bytes) {
    const dafi_tensors_t *zone = &arena->tensors;
    uint32_t id = dafi_tree_last(&zone->dirty);
    for (int i = 0; id && i < NUM_GROWTH_CANDIDATES; i++, id = dafi_tree_prev(&zone->dirty, id)) {
        uint64_t missing = num_bytes - dafi_extent(zone, id)->num_bytes;
        for (int after = 1; after >= 0; after--) {
            uint32_t clean = neighbour(zone, id, after);
            if (has_state(zone, clean, DAFI_CLEAN) && dafi_extent(zone, clean)->num_bytes >= missing)
                return (growth_t){id, clean, after, missing};
        }
    }
    uint32_t clean = dafi_tree_lower_bound(&zone->clean, dafi_round_up(num_bytes, arena->backend.unit_bytes), 0);
    return (growth_t){0, clean, true, num_bytes};
}

/* Commit until a dirty extent of `num_bytes` exists; returns it, and in `grown` what was committed for it. Where memory
 * can be moved, room for it is made afterwards. */
static uint32_t grow(daf_arena_t *arena, uint64_t num_bytes, daf_status_t *status, dafi_run_t *grown) {
    dafi_tensors_t *zone = &arena->tensors;
    uint64_t unit = arena->backend.unit_bytes;
    growth_t plan = plan_growth(arena, num_bytes);
    *status = DAF_OUT_OF_MEMORY;
    if (plan.clean == 0) return 0;
    uint64_t need = dafi_round_up(plan.missing_bytes, unit);
    if (!dafi_could_admit(arena, need, plan.dirty)) return 0;
    if (!arena->backend.move) {
        if (!dafi_make_room(arena, need, plan.dirty)) return 0;
        plan = plan_growth(arena, num_bytes); /* borders may have moved; never for the worse: `dirty` was kept */
        need = dafi_round_up(plan.missing_bytes, unit);
    }
    const dafi_extent_t *clean = dafi_extent(zone, plan.clean);
    uint64_t take = dafi_growth(arena, need, clean->num_bytes);
    uint64_t offset = plan.after ? clean->offset : clean->offset + clean->num_bytes - take;
    *status = DAF_SYSTEM;
    if (!commit_range(arena, plan.clean, offset, take)) return 0;
    *grown = (dafi_run_t){zone->base + offset, take};
    return dafi_tree_lower_bound(&zone->dirty, num_bytes, 0);
}

/* Memory for what was just committed: what is cached elsewhere, then planes. */
static bool pay_for(daf_arena_t *arena, dafi_run_t grown) {
    if (grown.num_bytes == 0 || !arena->backend.move) return true;
    dafi_hole_t hole;
    hole.num_runs = 0;
    dafi_hole_add(&hole, grown.at, grown.num_bytes);
    dafi_fill(arena, &hole, grown.num_bytes, true);
    return dafi_make_room(arena, 0, 0);
}

/* The dirty extent before the free end of the zone can still grow in place, so it is kept for what fits nowhere else:
 * cut up by small requests it would leave a hole there, and the next large one would commit as much again. */
static uint32_t best_fit(const dafi_tensors_t *zone, uint64_t num_bytes) {
    uint32_t id = dafi_tree_lower_bound(&zone->dirty, num_bytes, 0);
    uint32_t end = id ? neighbour(zone, id, true) : 0;
    if (!has_state(zone, end, DAFI_CLEAN)) return id;
    bool is_last = dafi_extent(zone, end)->offset + dafi_extent(zone, end)->num_bytes == zone->span_bytes;
    uint32_t other = is_last ? dafi_tree_next(&zone->dirty, id) : 0;
    return other ? other : id;
}

uint32_t dafi_extent_alloc(daf_arena_t *arena, uint64_t num_bytes, uint32_t state, daf_status_t *status) {
    dafi_tensors_t *zone = &arena->tensors;
    *status = DAF_OUT_OF_MEMORY;
    if (num_bytes > zone->span_bytes) return 0;
    num_bytes = dafi_round_up(num_bytes, DAFI_GRANULE);
    uint32_t id = best_fit(zone, num_bytes);
    if (id == 0 && zone->idle_bytes && arena->resident_bytes + num_bytes > arena->budget_bytes) {
        dafi_small_trim(arena);
        id = best_fit(zone, num_bytes);
    }
    dafi_run_t grown = {0};
    if (id == 0) id = grow(arena, num_bytes, status, &grown);
    if (id == 0) return 0;
    tree_remove(arena, id);
    dafi_extent(zone, id)->state = state;
    bool is_cut = split(arena, id, num_bytes);
    *status = !is_cut ? DAF_SYSTEM : pay_for(arena, grown) ? DAF_OK : DAF_OUT_OF_MEMORY;
    if (*status == DAF_OK) return id;
    dafi_extent_free(arena, id);
    dafi_after_free(arena); /* nothing has been written there yet: it goes back */
    return 0;
}

void dafi_extent_free(daf_arena_t *arena, uint32_t id) {
    dafi_assert(id && dafi_extent(&arena->tensors, id)->state != DAFI_GONE);
    dafi_extent(&arena->tensors, id)->state = DAFI_DIRTY;
    settle(arena, id);
}

/* Take up to `max_bytes` (at least one unit) of memory from dirty extent `id`, into `hole` or for the system. */
static uint64_t trim_extent(daf_arena_t *arena, uint32_t id, uint64_t max_bytes, dafi_hole_t *hole) {
    dafi_tensors_t *zone = &arena->tensors;
    uint64_t start, inner = inner_bytes(arena, dafi_extent(zone, id), &start);
    uint64_t bytes = dafi_round_up(dafi_min(inner, max_bytes), arena->backend.unit_bytes); /* inner is whole units */
    start += inner - bytes; /* from the end: the clean rest is more likely to merge with the top of the zone */
    if (bytes == 0 || !can_cut(zone) || dafi_give_back(arena, zone->base + start, bytes, hole) != DAF_OK) return 0;
    dafi_extent_t *extent = dafi_extent(zone, id);
    uint64_t before = start - extent->offset, after = extent->num_bytes - before - bytes, offset = extent->offset;
    tree_remove(arena, id);
    *extent = (dafi_extent_t){.offset = start, .num_bytes = bytes, .state = DAFI_CLEAN};
    set_owner(zone, id);
    if (before) settle(arena, make_extent(zone, offset, before, DAFI_DIRTY));
    if (after) settle(arena, make_extent(zone, start + bytes, after, DAFI_DIRTY));
    settle(arena, id);
    arena->resident_bytes -= bytes;
    return bytes;
}

uint64_t dafi_tensors_trim(daf_arena_t *arena, uint64_t max_bytes, uint32_t keep) {
    dafi_tensors_t *zone = &arena->tensors;
    if (keep == 0 && zone->trimmable_bytes < max_bytes) dafi_small_trim(arena); /* it might merge into `keep` */
    uint64_t given = 0, kept = keep ? dafi_extent(zone, keep)->offset : UINT64_MAX;
    uint32_t id = dafi_tree_last(&zone->dirty);
    while (id && given < max_bytes && zone->trimmable_bytes) {
        uint32_t next = dafi_tree_prev(&zone->dirty, id);
        uint64_t next_key = next ? node(zone, next)->key : 0, next_tie = next ? node(zone, next)->tie : 0;
        if (dafi_extent(zone, id)->offset != kept) given += trim_extent(arena, id, max_bytes - given, NULL);
        /* Trimming may have renumbered the rest: go on below where we were. */
        id = next ? dafi_tree_lower_bound(&zone->dirty, next_key, next_tie) : 0;
    }
    if (given) arena->counts.trims++;
    arena->counts.trimmed_bytes += given;
    return given;
}

/* The largest first: fewest pieces. */
uint64_t dafi_tensors_lend(daf_arena_t *arena, uint64_t max_bytes, dafi_hole_t *hole) {
    dafi_tensors_t *zone = &arena->tensors;
    uint64_t lent = 0, bytes = 1;
    while (bytes && max_bytes - lent >= DAFI_MIN_MOVE_BYTES) {
        uint32_t id = dafi_tree_last(&zone->dirty);
        if (id == 0 || dafi_extent(zone, id)->num_bytes < DAFI_MIN_MOVE_BYTES) break;
        bytes = trim_extent(arena, id, max_bytes - lent, hole);
        lent += bytes;
    }
    return lent;
}

void dafi_tensors_renew(daf_arena_t *arena) {
    dafi_tensors_t *zone = &arena->tensors;
    const dafi_extent_t *extent;
    for (uint64_t at = 0; at < zone->top_bytes; at = extent->offset + extent->num_bytes) {
        extent = dafi_extent(zone, owner_at(zone, at));
        uint64_t bytes = dafi_min(extent->num_bytes, zone->top_bytes - at);
        if (extent->state == DAFI_DIRTY || extent->state == DAFI_CLEAN) dafi_renew(arena, zone->base + at, bytes);
        if (extent->state == DAFI_DIRTY) prefer_huge(arena, extent);
    }
}

daf_status_t dafi_tensors_open(daf_arena_t *arena, uint64_t span_bytes) {
    dafi_tensors_t *zone = &arena->tensors;
    if (arena->backend.reserve(arena->backend.self, span_bytes, &zone->base) != DAF_OK) return DAF_SYSTEM;
    zone->span_bytes = span_bytes;
    zone->owner_bytes = span_bytes / DAFI_GRANULE * sizeof *zone->owner;
    zone->owner = dafi_map(zone->owner_bytes);
    if (!zone->owner || !dafi_table_open(&zone->extents, sizeof(dafi_extent_t), MAX_EXTENTS) ||
        !dafi_table_open(&zone->nodes, sizeof(dafi_node_t), MAX_EXTENTS) ||
        !dafi_table_open(&zone->slabs, sizeof(dafi_slab_t), MAX_EXTENTS / 4))
        return DAF_SYSTEM;
    zone->dirty.nodes = zone->clean.nodes = (dafi_node_t *)zone->nodes.base;
    uint32_t all = make_extent(zone, 0, span_bytes, DAFI_CLEAN);
    if (all == 0) return DAF_SYSTEM;
    tree_add(arena, all);
    return DAF_OK;
}

void dafi_tensors_close(daf_arena_t *arena) {
    dafi_tensors_t *zone = &arena->tensors;
    if (zone->base) arena->backend.unreserve(arena->backend.self, zone->base, zone->span_bytes);
    dafi_unmap(zone->owner, zone->owner_bytes);
    dafi_table_close(&zone->extents);
    dafi_table_close(&zone->nodes);
    dafi_table_close(&zone->slabs);
}
