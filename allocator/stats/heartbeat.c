/* The heartbeat: one small thread that publishes and applies commands. It holds the arena's lock to copy what has
 * changed and for nothing else. Here too: the list of open arenas, and what fork does to them. */
#define _GNU_SOURCE
#include "stats/stats_page.h"

#include <signal.h>
#include <time.h>

#define MAP_PERIOD_NS UINT64_C(500000000)

static void *run(void *argument) {
    daf_arena_t *arena = argument;
    struct dafi_page *page = arena->page;
    pthread_mutex_lock(&page->heart_lock);
    while (!page->is_stopping) {
        uint64_t wake_ns = dafi_monotonic_ns() + DAFI_HEARTBEAT_NS;
        struct timespec wake = {.tv_sec = (time_t)(wake_ns / 1000000000u), .tv_nsec = (long)(wake_ns % 1000000000u)};
        pthread_cond_timedwait(&page->heart_wake, &page->heart_lock, &wake);
        if (page->is_stopping) break;
        bool with_map = wake_ns - page->map_ns > MAP_PERIOD_NS;
        if (with_map) page->map_ns = wake_ns;
        dafi_page_write(arena, with_map);
    }
    pthread_mutex_unlock(&page->heart_lock);
    return NULL;
}

bool dafi_heart_start(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&page->heart_wake, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&page->heart_lock, NULL);
    sigset_t all, before; /* signals belong to the training program's threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    page->has_heart = pthread_create(&page->heart, NULL, run, arena) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return page->has_heart;
}

void dafi_heart_stop(daf_arena_t *arena) {
    struct dafi_page *page = arena->page;
    if (!page->has_heart) return;
    pthread_mutex_lock(&page->heart_lock);
    page->is_stopping = true;
    pthread_cond_signal(&page->heart_wake);
    pthread_mutex_unlock(&page->heart_lock);
    pthread_join(page->heart, NULL);
    page->has_heart = false;
    pthread_cond_destroy(&page->heart_wake);
    pthread_mutex_destroy(&page->heart_lock);
}

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static daf_arena_t *registry;

/* Fork with every lock held, so that the child finds all books in order. */
static void before_fork(void) {
    pthread_mutex_lock(&registry_lock);
    for (daf_arena_t *it = registry; it; it = it->next) dafi_lock(it);
}

static void unlock_all(void) {
    for (daf_arena_t *it = registry; it; it = it->next) dafi_unlock(it);
    pthread_mutex_unlock(&registry_lock);
}

static void in_child(void) {
    for (daf_arena_t *it = registry; it; it = it->next) {
        dafi_page_orphan(it);
        dafi_spill_orphan(it);
        dafi_relief_orphan(it);
    }
    unlock_all();
}

static void watch_forks(void) {
    pthread_atfork(before_fork, unlock_all, in_child);
}

void dafi_registry_add(daf_arena_t *arena) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&registry_lock);
    arena->next = registry;
    registry = arena;
    pthread_mutex_unlock(&registry_lock);
}

void dafi_registry_remove(daf_arena_t *arena) {
    pthread_mutex_lock(&registry_lock);
    daf_arena_t **link = &registry;
    while (*link && *link != arena) link = &(*link)->next;
    if (*link) *link = arena->next;
    pthread_mutex_unlock(&registry_lock);
}
