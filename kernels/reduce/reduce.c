/* The three strategies of the range reduction. They differ only in where a block's partial goes; see reduce.h. */
#include <stdatomic.h>
#include <math.h>
#include <stdlib.h>
#include "reduce/reduce.h"
#include "threads.h"

enum {
    BLOCK_VALUES = 8192,  /* what a block reduces: enough to hide an atomic, small enough to share out evenly */
    LEAST_ROWS = 16,      /* of a column block, however wide: it must spare the shared cells some traffic */
    GRAIN_VALUES = 65536, /* the least worth waking a thread for */
    STACK_CELLS = 256,    /* private cells that need no heap */
};

typedef struct cells {
    int64_t *lo, *hi;
} cells_t;

/* One reduction: num_blocks == outer * channels * segments for runs, == ceil(outer / block_rows) for columns. */
typedef struct reduction {
    const daf_range_request_t *request;
    const dafi_reduce_kernels_t *kernels;
    _Atomic int64_t *shared_lo, *shared_hi; /* [channels]: where atomic and hybrid meet */
    cells_t partials;                       /* parallel: [num_blocks] for runs, [num_blocks, channels] for columns */
    int64_t outer, channels, inner;
    int64_t num_blocks;
    int64_t segments;   /* runs: blocks of one run; columns: 0 */
    int64_t block_rows; /* columns: rows of one block */
    _Atomic int failed; /* scratch memory ran out on some thread */
} reduction_t;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void empty_cells(cells_t cells, int64_t count) {
    for (int64_t i = 0; i < count; i++) cells.lo[i] = DAF_EMPTY_LO, cells.hi[i] = DAF_EMPTY_HI;
}

static void fold_cells(cells_t into, cells_t from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        into.lo[i] = least(into.lo[i], from.lo[i]);
        into.hi[i] = most(into.hi[i], from.hi[i]);
    }
}

static cells_t cells_at(cells_t cells, int64_t index) {
    return (cells_t){cells.lo + index, cells.hi + index};
}

/* ---- one block ---- */

static const char *value_at(const reduction_t *all, int64_t index) {
    return (const char *)all->request->values + index * all->kernels->value_bytes;
}

static void fold_run(const reduction_t *all, int64_t block, cells_t cell) {
    int64_t run = block / all->segments, segment = block % all->segments;
    int64_t begin = all->inner * segment / all->segments, end = all->inner * (segment + 1) / all->segments;
    all->kernels->run(value_at(all, run * all->inner + begin), end - begin, cell.lo, cell.hi);
}

static void fold_columns(const reduction_t *all, int64_t block, cells_t cells) {
    int64_t begin = block * all->block_rows, rows = least(all->block_rows, all->outer - begin);
    all->kernels->columns(value_at(all, begin * all->channels), rows, all->channels, cells.lo, cells.hi);
}

/* The channels that a block has values of: one for a run, all for columns. */
static int64_t block_channels(const reduction_t *all) {
    return all->segments ? 1 : all->channels;
}

static int64_t block_first_channel(const reduction_t *all, int64_t block) {
    return all->segments ? block / all->segments % all->channels : 0;
}

static void fold_block(const reduction_t *all, int64_t block, cells_t cells) {
    if (all->segments)
        fold_run(all, block, cells);
    else
        fold_columns(all, block, cells);
}

static void for_blocks(reduction_t *all, dafi_span_task_t task) {
    int64_t block_values = all->outer * all->channels * all->inner / all->num_blocks + 1;
    dafi_parallel_for(all->num_blocks, GRAIN_VALUES / block_values + 1, task, all);
}

/* ---- parallel: store partials, then a tree ---- */

static void store_blocks(void *context, int64_t begin, int64_t end) {
    const reduction_t *all = context;
    int64_t width = block_channels(all);
    for (int64_t block = begin; block < end; block++) {
        cells_t partial = cells_at(all->partials, block * width);
        empty_cells(partial, width);
        fold_block(all, block, partial);
    }
}

/* Folds the upper half of `count` rows onto the lower until one is left. */
static void fold_tree(cells_t rows, int64_t count, int64_t width) {
    while (count > 1) {
        int64_t half = (count + 1) / 2;
        fold_cells(rows, cells_at(rows, half * width), (count - half) * width);
        count = half;
    }
}

static void fold_partials(const reduction_t *all, cells_t result) {
    int64_t width = all->segments ? all->channels * all->segments : all->channels;
    fold_tree(all->partials, all->num_blocks / (all->segments ? width : 1), width);
    for (int64_t c = 0; c < all->channels; c++) {
        cells_t channel = cells_at(all->partials, all->segments ? c * all->segments : c);
        fold_tree(channel, most(all->segments, 1), 1);
        fold_cells(cells_at(result, c), channel, 1);
    }
}

static daf_status_t reduce_parallel(reduction_t *all, cells_t result) {
    size_t count = (size_t)(all->num_blocks * block_channels(all));
    int64_t *memory = malloc(2 * count * sizeof *memory);
    if (!memory) return DAF_SYSTEM;
    all->partials = (cells_t){memory, memory + count};
    for_blocks(all, store_blocks);
    fold_partials(all, result);
    free(memory);
    return DAF_OK;
}

/* ---- atomic and hybrid: meet in shared cells, after every block or after a thread's last ---- */

/* The two halves of a cell are minima of their own, so they need no common lock. */
static void share_cell(_Atomic int64_t *lo, _Atomic int64_t *hi, int64_t low, int64_t high) {
    int64_t seen = atomic_load_explicit(lo, memory_order_relaxed);
    while (low < seen && !atomic_compare_exchange_weak(lo, &seen, low)) continue;
    seen = atomic_load_explicit(hi, memory_order_relaxed);
    while (high > seen && !atomic_compare_exchange_weak(hi, &seen, high)) continue;
}

/* Shares `count` private cells and leaves them empty. */
static void share_cells(const reduction_t *all, cells_t mine, int64_t first, int64_t count) {
    for (int64_t c = first; c < first + count; c++)
        if (mine.lo[c] <= mine.hi[c]) share_cell(all->shared_lo + c, all->shared_hi + c, mine.lo[c], mine.hi[c]);
    empty_cells(cells_at(mine, first), count);
}

static void share_blocks(void *context, int64_t begin, int64_t end) {
    reduction_t *all = context;
    int is_atomic = all->request->strategy == DAF_REDUCE_ATOMIC;
    int64_t stack[2 * STACK_CELLS], channels = all->channels;
    int64_t *heap = channels > STACK_CELLS ? malloc(2 * (size_t)channels * sizeof *heap) : stack;
    if (!heap) {
        all->failed = 1;
        return;
    }
    cells_t mine = {heap, heap + channels};
    empty_cells(mine, channels);
    for (int64_t block = begin; block < end; block++) {
        int64_t first = block_first_channel(all, block);
        fold_block(all, block, cells_at(mine, first));
        if (is_atomic) share_cells(all, mine, first, block_channels(all));
    }
    if (!is_atomic) share_cells(all, mine, 0, channels);
    if (heap != stack) free(heap);
}

static daf_status_t reduce_shared(reduction_t *all, cells_t result) {
    all->shared_lo = (_Atomic int64_t *)result.lo;
    all->shared_hi = (_Atomic int64_t *)result.hi;
    for_blocks(all, share_blocks);
    return all->failed ? DAF_SYSTEM : DAF_OK;
}

/* ---- the whole ---- */

/* A single channel is one run, however it was cut; then columns where channels lie side by side, runs elsewhere. */
static void lay_out(reduction_t *all) {
    const daf_range_request_t *request = all->request;
    int is_one = request->channels == 1;
    all->outer = is_one ? 1 : request->outer;
    all->channels = request->channels;
    all->inner = is_one ? request->outer * request->inner : request->inner;
    if (all->inner > 1 || is_one) {
        all->segments = (all->inner + BLOCK_VALUES - 1) / BLOCK_VALUES;
        all->num_blocks = all->outer * all->channels * all->segments;
    } else {
        all->block_rows = most(BLOCK_VALUES / all->channels, LEAST_ROWS);
        all->num_blocks = (all->outer + all->block_rows - 1) / all->block_rows;
    }
}

static void write_numbers(const reduction_t *all, cells_t cells, daf_number_t *lo, daf_number_t *hi) {
    for (int64_t c = 0; c < all->channels; c++) {
        int is_empty = cells.lo[c] > cells.hi[c];
        if (all->kernels->real) {
            lo[c].real = is_empty ? HUGE_VAL : all->kernels->real(cells.lo[c]);
            hi[c].real = is_empty ? -HUGE_VAL : all->kernels->real(cells.hi[c]);
        } else {
            lo[c].integer = cells.lo[c];
            hi[c].integer = cells.hi[c];
        }
    }
}

daf_status_t daf_reduce_ranges(const daf_range_request_t *request, daf_number_t *lo, daf_number_t *hi) {
    reduction_t all = {.request = request, .kernels = dafi_reduce_kernels(request->dtype)};
    if (!all.kernels || request->outer < 1 || request->channels < 1 || request->inner < 1) return DAF_BAD_SPEC;
    lay_out(&all);
    int64_t *memory = malloc(2 * (size_t)all.channels * sizeof *memory);
    if (!memory) return DAF_SYSTEM;
    cells_t result = {memory, memory + all.channels};
    empty_cells(result, all.channels);
    daf_status_t status =
        request->strategy == DAF_REDUCE_PARALLEL ? reduce_parallel(&all, result) : reduce_shared(&all, result);
    if (status == DAF_OK) write_numbers(&all, result, lo, hi);
    free(memory);
    return status;
}
