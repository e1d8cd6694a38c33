#define _GNU_SOURCE
#include "trace/trace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A buffer of our own instead of stdio's: a forked child must not write the lines that its parent has not written yet.
 */
enum { BUFFER_BYTES = 1 << 16, LINE_BYTES = 160 };

int dafi_is_tracing;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static int is_broken;
static char buffer[BUFFER_BYTES];
static size_t used_bytes;

static const char *const ACTIONS[] = {"allocate", "free", "stash", "release", "step"};

static void flush(void) {
    for (size_t done = 0; done < used_bytes && !is_broken;) {
        ssize_t wrote = write(file, buffer + done, used_bytes - done);
        if (wrote > 0)
            done += (size_t)wrote;
        else if (errno != EINTR)
            is_broken = 1;
    }
    used_bytes = 0;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void) {
    pthread_mutex_unlock(&lock);
}

static void after_fork_in_child(void) {
    dafi_is_tracing = 0;
    used_bytes = 0;
    if (file >= 0) close(file);
    file = -1;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

daf_status_t daf_trace_open(const char *path) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    daf_status_t status = DAF_INVALID;
    pthread_mutex_lock(&lock);
    if (file < 0) {
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        status = file < 0 ? DAF_SYSTEM : DAF_OK;
    }
    if (status == DAF_OK) {
        is_broken = 0;
        used_bytes = (size_t)snprintf(buffer, sizeof(buffer), "Thread,Time,Action,Pointer,Size,Stream\n");
        __atomic_store_n(&dafi_is_tracing, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

daf_status_t daf_trace_close(void) {
    pthread_mutex_lock(&lock);
    __atomic_store_n(&dafi_is_tracing, 0, __ATOMIC_RELEASE);
    if (file >= 0) {
        flush();
        if (close(file) != 0) is_broken = 1;
        file = -1;
    }
    daf_status_t status = is_broken ? DAF_SYSTEM : DAF_OK;
    pthread_mutex_unlock(&lock);
    return status;
}

void daf_trace_record(daf_trace_action_t action, const void *pointer, uint64_t num_bytes, const void *stream) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned second = (unsigned)(now.tv_sec % 86400);
    pthread_mutex_lock(&lock);
    if (file >= 0) {
        if (used_bytes + LINE_BYTES > sizeof(buffer)) flush();
        used_bytes += (size_t)snprintf(
            buffer + used_bytes, LINE_BYTES, "%ld,%02u:%02u:%02u:%06ld,%s,0x%" PRIxPTR ",%" PRIu64 ",%" PRIuPTR "\n",
            syscall(SYS_gettid), second / 3600, second / 60 % 60, second % 60, now.tv_nsec / 1000, ACTIONS[action],
            (uintptr_t)pointer, num_bytes, (uintptr_t)stream);
    }
    pthread_mutex_unlock(&lock);
}
