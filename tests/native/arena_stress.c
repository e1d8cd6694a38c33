/* Eight threads allocate, stash, evict, resize and watch at once; run under sanitizers by scripts/sanitize.
 *
 * Memory comes from a strict backend: what is not committed cannot be touched, so any use of it ends the run. Every
 * block and every page is filled with its owner's mark and checked before it is given back: overlaps show as wrong
 * marks.
 *
 *   arena_stress ROUNDS SEED FOLDER
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "arena.h"

#define NUM_THREADS 8
#define NUM_HELD 48
#define BUDGET_BYTES (UINT64_C(24) << 20)

static _Atomic int num_failures;

static void fail(const char *what) {
    if (atomic_fetch_add(&num_failures, 1) < 10) fprintf(stderr, "arena_stress: %s\n", what);
}

static daf_status_t strict_reserve(void *self, uint64_t num_bytes, uint8_t **base) {
    uint64_t unit = *(const uint64_t *)self; /* aligned to its unit, as a driver would */
    uint8_t *found = mmap(NULL, num_bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return DAF_SYSTEM;
    uint64_t ahead = (unit - (uintptr_t)found % unit) % unit;
    if (ahead) munmap(found, ahead);
    if (unit - ahead) munmap(found + ahead + num_bytes, unit - ahead);
    *base = found + ahead;
    return DAF_OK;
}

static void strict_unreserve(void *self, uint8_t *base, uint64_t num_bytes) {
    (void)self;
    munmap(base, num_bytes);
}

static daf_status_t strict_commit(void *self, uint8_t *base, uint64_t num_bytes) {
    uint64_t unit = *(const uint64_t *)self;
    if ((uintptr_t)base % unit || num_bytes % unit) fail("commit of a part of a unit");
    return mprotect(base, num_bytes, PROT_READ | PROT_WRITE) ? DAF_SYSTEM : DAF_OK;
}

static daf_status_t strict_decommit(void *self, uint8_t *base, uint64_t num_bytes) {
    uint64_t unit = *(const uint64_t *)self;
    if ((uintptr_t)base % unit || num_bytes % unit) fail("decommit of a part of a unit");
    if (madvise(base, num_bytes, MADV_DONTNEED)) return DAF_SYSTEM;
    return mprotect(base, num_bytes, PROT_NONE) ? DAF_SYSTEM : DAF_OK;
}

/* Only what is committed: the rest cannot be read. */
static void strict_prefer_huge(void *self, uint8_t *base, uint64_t num_bytes) {
    uint64_t unit = *(const uint64_t *)self;
    for (uint64_t at = 0; at < num_bytes; at += unit) (void)*(volatile uint8_t *)(base + at);
}

static daf_status_t strict_move(void *self, uint8_t *from, uint8_t *to, uint64_t num_bytes) {
    uint64_t unit = *(const uint64_t *)self;
    if ((uintptr_t)from % unit || (uintptr_t)to % unit || num_bytes % unit) fail("move of a part of a unit");
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if (mremap(from, num_bytes, num_bytes, flags, to) != to) return DAF_SYSTEM;
    return mprotect(from, num_bytes, PROT_NONE) ? DAF_SYSTEM : DAF_OK;
}

typedef struct worker {
    daf_arena_t *arena;
    uint64_t random;
    int num_rounds;
    uint8_t mark;
    int busy, is_asked; /* the block that is being changed; a callback is running */
    struct {
        uint8_t *block;
        uint64_t num_bytes;
    } blocks[NUM_HELD];
    daf_stash_t *stashes[NUM_HELD];
} worker_t;

static uint64_t draw(worker_t *worker, uint64_t below) {
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return worker->random % below;
}

static void swap_block(worker_t *worker, int i) {
    static const uint64_t sizes[] = {1, 64, 300, 1500, 5000, 9000, 70000, 400000, 1500000};
    uint8_t *block = worker->blocks[i].block;
    uint64_t num_bytes = worker->blocks[i].num_bytes;
    if (block) {
        if (block[0] != worker->mark || block[num_bytes / 2] != worker->mark || block[num_bytes - 1] != worker->mark)
            fail("a block was overwritten");
        if (daf_arena_free(worker->arena, block) != DAF_OK) fail("free");
        worker->blocks[i].block = NULL;
        return;
    }
    void *found;
    num_bytes = sizes[draw(worker, sizeof sizes / sizeof *sizes)];
    if (daf_arena_alloc(worker->arena, num_bytes, &found) != DAF_OK) return;
    memset(found, worker->mark, num_bytes);
    worker->blocks[i].block = found;
    worker->blocks[i].num_bytes = num_bytes;
}

static _Thread_local worker_t *self_worker;

/* Every other time, free some of the blocks of the thread that asked, after a request of its own. */
static int on_pressure(void *context, uint64_t missing_bytes) {
    worker_t *worker = self_worker;
    uint64_t freed = 0;
    void *own;
    if (worker->is_asked) fail("a request of the callback asked again");
    worker->is_asked = 1;
    if (daf_arena_alloc(context, 3000, &own) == DAF_OK) daf_arena_free(context, own);
    for (int i = 0; draw(worker, 2) && i < NUM_HELD && freed < missing_bytes; i++) {
        if (!worker->blocks[i].block || i == worker->busy) continue;
        freed += worker->blocks[i].num_bytes;
        swap_block(worker, i);
    }
    worker->is_asked = 0;
    return freed > 0;
}

/* Mark or check all pages of a pinned stash. */
static void visit_pages(const worker_t *worker, const daf_stash_t *stash, uint32_t num_pages, int is_check) {
    const daf_stash_view_t *view = daf_stash_view(stash);
    for (uint32_t i = 0; i < num_pages; i++) {
        if (!is_check)
            memset(view->pages[i], worker->mark, view->page_bytes);
        else if (view->pages[i][0] != worker->mark || view->pages[i][view->page_bytes - 1] != worker->mark)
            fail("a page was overwritten");
    }
}

static void make_stash(worker_t *worker, int i) {
    daf_stash_spec_t spec = {.num_streams = 1 + (uint32_t)draw(worker, 6),
                             .floor_streams = 1 + (uint32_t)draw(worker, 2)};
    uint32_t num_pages = 0;
    for (uint32_t s = 0; s < spec.num_streams; s++) {
        spec.stream_bytes[s] = 1 + draw(worker, 60000);
        spec.importance[s] = (double)draw(worker, 1000);
        num_pages += (uint32_t)((spec.stream_bytes[s] + 4095) / 4096);
    }
    daf_stash_t *stash;
    if (daf_stash_reserve(worker->arena, &spec, (uint32_t)i, 1000, &stash) != DAF_OK) return;
    visit_pages(worker, stash, num_pages, 0);
    if (daf_stash_unpin(worker->arena, stash) != DAF_OK) fail("unpin");
    worker->stashes[i] = stash;
}

static void use_stash(worker_t *worker, int i) {
    daf_stash_t *stash = worker->stashes[i];
    if (!stash) {
        make_stash(worker, i);
        return;
    }
    daf_status_t status = daf_stash_pin(worker->arena, stash);
    if (status == DAF_OUT_OF_MEMORY) return; /* it is spilled, and there is no room now */
    if (status != DAF_OK) fail("pin");
    const daf_stash_view_t *view = daf_stash_view(stash);
    uint32_t last =
        view->num_streams - 1; /* how long the last stream is, only the spec knew: check up to its first page */
    visit_pages(worker, stash, view->first_page[last] + 1, 1);
    if (draw(worker, 2)) {
        if (daf_stash_release(worker->arena, stash) != DAF_OK) fail("release");
        worker->stashes[i] = NULL;
        return;
    }
    double importance[DAF_MAX_STREAMS];
    for (int s = 0; s < DAF_MAX_STREAMS; s++) importance[s] = (double)draw(worker, 1000);
    daf_stash_set_importance(worker->arena, stash, importance);
    if (daf_stash_unpin(worker->arena, stash) != DAF_OK) fail("unpin");
}

static void do_rare(worker_t *worker) {
    daf_outcome_t outcome;
    uint64_t cells[256];
    switch (draw(worker, 9)) {
    case 0:
        daf_arena_set_budget(worker->arena, BUDGET_BYTES / 2 + draw(worker, BUDGET_BYTES), 1, &outcome);
        break;
    case 1:
        daf_arena_evict(worker->arena, 3);
        break;
    case 2:
        daf_arena_trim(worker->arena, draw(worker, 1 << 20));
        break;
    case 3:
        daf_arena_step(worker->arena, 0.001);
        break;
    case 4:
        daf_arena_flush(worker->arena);
        break;
    case 5:
        daf_arena_event(worker->arena, 16, 0, 0, 0, "stress");
        break;
    case 7:
        daf_arena_set_pressure(worker->arena, draw(worker, 4) ? on_pressure : NULL, worker->arena);
        break;
    case 6:
        daf_arena_stats(worker->arena, cells);
        break;
    default: {
        char text[2048];
        daf_arena_report(worker->arena, 1000, text, sizeof text);
        daf_slot_row_t row = {.name = "slot", .bits = 2};
        daf_arena_slot(worker->arena, (uint32_t)draw(worker, 64), &row);
    }
    }
}

static void *work(void *argument) {
    worker_t *worker = self_worker = argument;
    for (int round = 0; round < worker->num_rounds; round++) {
        int i = worker->busy = (int)draw(worker, NUM_HELD);
        if (draw(worker, 100) < 3)
            do_rare(worker);
        else if (draw(worker, 2))
            swap_block(worker, i);
        else
            use_stash(worker, i);
    }
    for (int i = 0; i < NUM_HELD; i++) {
        if (worker->blocks[i].block) swap_block(worker, i);
        if (worker->stashes[i]) daf_stash_release(worker->arena, worker->stashes[i]);
    }
    return NULL;
}

static void check(daf_arena_t *arena) {
    char why[256] = "";
    if (!daf_arena_is_valid(arena, why, sizeof why)) fail(why);
}

static void run(uint64_t unit_bytes, const char *spill_dir, int num_rounds, uint64_t seed, const char *folder) {
    daf_backend_t backend = {
        .name = "strict",
        .self = &unit_bytes,
        .unit_bytes = unit_bytes,
        .is_costly = unit_bytes > 4096,
        .reserve = strict_reserve,
        .unreserve = strict_unreserve,
        .commit = strict_commit,
        .decommit = strict_decommit,
        .prefer_huge = strict_prefer_huge,
        .move = unit_bytes == 4096 ? strict_move : NULL,
    };
    daf_arena_config_t config = {
        .budget_bytes = BUDGET_BYTES, .reserve_bytes = UINT64_C(1) << 32, .backend = &backend, .spill_dir = spill_dir};
    daf_arena_t *arena;
    if (daf_arena_open(&config, &arena) != DAF_OK) return fail("open");
    if (daf_arena_publish(arena, folder, "{}") != DAF_OK) fail("publish");
    static worker_t workers[NUM_THREADS];
    pthread_t threads[NUM_THREADS];
    memset(workers, 0, sizeof workers);
    for (int i = 0; i < NUM_THREADS; i++) {
        workers[i] = (worker_t){
            .arena = arena, .random = seed * 977 + (uint64_t)i + 1, .num_rounds = num_rounds, .mark = (uint8_t)(i + 1)};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < 20; i++) check(arena);
    for (int i = 0; i < NUM_THREADS; i++) pthread_join(threads[i], NULL);
    check(arena);
    daf_arena_clear(arena);
    daf_arena_close(arena);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int num_rounds = atoi(argv[1]);
    uint64_t seed = strtoull(argv[2], NULL, 10);
    run(4096, NULL, num_rounds, seed, argv[3]);
    run(4096, argv[3], num_rounds, seed + 1, argv[3]);
    run(2 << 20, NULL, num_rounds, seed + 2, argv[3]);
    printf("arena_stress: %d threads, 3 x %d rounds each, %d failures\n", NUM_THREADS, num_rounds, num_failures);
    return num_failures != 0;
}
