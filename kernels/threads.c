#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include "threads.h"

/* The OpenMP runtime's entry points. */
typedef struct runtime {
    void (*parallel)(void (*body)(void *), void *data, unsigned num_threads, unsigned flags);
    int (*max_threads)(void);
    int (*in_parallel)(void);
    int (*team_size)(void);
    int (*rank)(void);
} runtime_t;

static runtime_t runtime;
static atomic_bool is_found;
static _Thread_local int thread_limit;

/* Looked for until found: torch may be imported after us. Finding it twice at once writes the same values. */
static bool find_runtime(void) {
    if (atomic_load_explicit(&is_found, memory_order_acquire)) return true;
    void *found[5];
    const char *names[5] = {"GOMP_parallel", "omp_get_max_threads", "omp_in_parallel", "omp_get_num_threads",
                            "omp_get_thread_num"};
    for (int i = 0; i < 5; i++)
        if (!(found[i] = dlsym(RTLD_DEFAULT, names[i]))) return false;
    memcpy(&runtime, found, sizeof runtime); /* in the order of names; ISO C has no cast for it */
    atomic_store_explicit(&is_found, true, memory_order_release);
    return true;
}

int daf_num_threads(void) {
    if (thread_limit == 1 || !find_runtime() || runtime.in_parallel()) return 1;
    int num_threads = runtime.max_threads();
    return thread_limit && thread_limit < num_threads ? thread_limit : num_threads;
}

void daf_limit_threads(int num_threads) {
    thread_limit = num_threads;
}

typedef struct job {
    dafi_span_task_t task;
    void *context;
    int64_t count;
} job_t;

/* What each thread of the team runs: its span. The team may be smaller than asked for. */
static void run_span(void *data) {
    const job_t *job = data;
    int64_t rank = runtime.rank(), size = runtime.team_size();
    int64_t begin = job->count / size * rank + (rank < job->count % size ? rank : job->count % size);
    int64_t end = begin + job->count / size + (rank < job->count % size);
    if (begin < end) job->task(job->context, begin, end);
}

void dafi_parallel_for(int64_t count, int64_t grain, dafi_span_task_t task, void *context) {
    int64_t num_threads = count > grain ? daf_num_threads() : 1, most = grain > 1 ? count / grain : count;
    if (num_threads > most) num_threads = most;
    if (num_threads <= 1) {
        if (count > 0) task(context, 0, count);
        return;
    }
    job_t job = {task, context, count};
    runtime.parallel(run_span, &job, (unsigned)num_threads, 0);
}
