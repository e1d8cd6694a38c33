/* Moving memory: cached pages go under addresses that need memory, so that holes cost nothing.
 *
 *   before   | live | dirty 3 MiB | live | dirty 5 MiB | live | clean . . . . . . . .      8 MiB are asked for
 *   after    | live | clean       | live | clean       | live | 8 MiB live | clean . .      resident as before
 *
 * Freed tensors leave holes that the next, larger one does not fit into. Page tables can be changed where tensors
 * cannot be moved: the memory of the holes is mapped again where the new extent stands. On the host that costs some
 * microseconds a piece, a tenth of what fresh memory costs in page faults. The books see no difference between moved
 * memory and memory given back and taken anew; a move that fails becomes just that.
 *
 * Each move may cut a mapping in two, and a process may have 65530. After enough moves the arena has the free parts of
 * its zones mapped afresh, at the end of a step when most of them are free: all seams there are gone.
 */
#include "core/core.h"

#define RENEW_MOVES 4096u /* at the next step's end */
#define MAX_MOVES 16384u  /* from here on memory is given back and taken anew */

void dafi_hole_add(dafi_hole_t *hole, uint8_t *at, uint64_t num_bytes) {
    dafi_run_t *last = hole->num_runs ? &hole->runs[hole->num_runs - 1] : NULL;
    if (last && last->at + last->num_bytes == at)
        last->num_bytes += num_bytes;
    else if (hole->num_runs < DAFI_MAX_RUNS)
        hole->runs[hole->num_runs++] = (dafi_run_t){at, num_bytes};
}

static uint64_t move_to_run(daf_arena_t *arena, uint8_t *from, uint64_t num_bytes, dafi_run_t *run) {
    uint64_t bytes = dafi_min(run->num_bytes, num_bytes);
    if (bytes < DAFI_MIN_MOVE_BYTES || arena->num_moves >= MAX_MOVES) return 0;
    if (arena->backend.move(arena->backend.self, from, run->at, bytes) != DAF_OK) return 0;
    arena->num_moves++;
    arena->counts.moves++;
    run->at += bytes;
    run->num_bytes -= bytes;
    return bytes;
}

daf_status_t dafi_give_back(daf_arena_t *arena, uint8_t *from, uint64_t num_bytes, dafi_hole_t *hole) {
    while (num_bytes && hole && hole->num_runs) {
        dafi_run_t *run = &hole->runs[hole->num_runs - 1];
        uint64_t bytes = move_to_run(arena, from, num_bytes, run);
        if (bytes == 0 || run->num_bytes == 0) hole->num_runs--;
        from += bytes;
        num_bytes -= bytes;
    }
    return num_bytes ? arena->backend.decommit(arena->backend.self, from, num_bytes) : DAF_OK;
}

void dafi_fill(daf_arena_t *arena, dafi_hole_t *hole, uint64_t num_bytes, bool with_pages) {
    if (!arena->backend.move) return;
    uint64_t filled = dafi_tensors_lend(arena, num_bytes, hole);
    uint64_t left = dafi_min(num_bytes - filled, arena->pages.num_dirty << arena->pages.page_shift);
    if (with_pages && left >= DAFI_MIN_MOVE_BYTES) filled += dafi_pages_lend(arena, left, hole);
    arena->counts.grown_bytes -= filled;
    arena->counts.moved_bytes += filled;
}

void dafi_renew(daf_arena_t *arena, uint8_t *base, uint64_t num_bytes) {
    arena->backend.decommit(arena->backend.self, base, num_bytes);
    arena->backend.commit(arena->backend.self, base, num_bytes);
}

void dafi_moves_renew(daf_arena_t *arena) {
    const dafi_pages_t *pages = &arena->pages;
    if (arena->num_moves < RENEW_MOVES) return;
    arena->num_moves = 0;
    dafi_tensors_renew(arena);
    uint64_t plane_bytes = ((uint64_t)pages->top_block * DAFI_BLOCK_PAGES) << pages->page_shift;
    if (pages->num_used == 0 && plane_bytes) dafi_renew(arena, pages->base, plane_bytes);
}
