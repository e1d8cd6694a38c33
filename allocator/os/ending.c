#define _GNU_SOURCE /* on_exit */
#include "os/ending.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_PATH_CHARS 1024

static const int SIGNALS[] = {SIGTERM, SIGHUP};

static char end_path[MAX_PATH_CHARS];
static _Atomic int is_watching, is_told, owner_pid, is_registered;

/* No printf: it is not safe in a signal handler. */
static size_t put_text(char *out, size_t at, const char *text) {
    while (*text) out[at++] = *text++;
    return at;
}

static size_t put_number(char *out, size_t at, long number) {
    char digits[24];
    size_t count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    while (count) out[at++] = digits[--count];
    return at;
}

static void write_end(const char *how, const char *key, int number) {
    if (!atomic_load(&is_watching) || atomic_exchange(&is_told, 1) || atomic_load(&owner_pid) != getpid()) return;
    char line[200];
    size_t at = put_text(line, 0, "{\"how\": \"");
    at = put_text(line, at, how);
    at = put_text(line, at, "\", \"");
    at = put_text(line, at, key);
    at = put_text(line, at, "\": ");
    at = put_number(line, at, number);
    at = put_text(line, at, ", \"time\": ");
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at = put_number(line, at, (long)now.tv_sec);
    at = put_text(line, at, "}\n");
    int file = open(end_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return;
    ssize_t written = write(file, line, at);
    (void)written; /* a full disk: the end stays untold */
    close(file);
}

static void on_signal(int number) {
    write_end("terminated", "signal", number);
    signal(number, SIG_DFL);
    raise(number);
}

static void at_exit(int status, void *unused) {
    (void)unused;
    write_end(status ? "failed" : "finished", "code", status);
}

/* Init of a pid namespace: a signal without a handler does not end it, so it would be told an end that is none. */
static void watch_signals(void) {
    if (getpid() == 1) return;
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
        struct sigaction before, ours = {.sa_handler = on_signal};
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGNALS[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(SIGNALS[i], &ours, NULL);
    }
}

static void leave_signals(void) {
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
        struct sigaction before;
        if (sigaction(SIGNALS[i], NULL, &before) == 0 && before.sa_handler == on_signal) signal(SIGNALS[i], SIG_DFL);
    }
}

int daf_ending_watch(const char *path) {
    if (strlen(path) >= sizeof end_path) return -1;
    atomic_store(&is_watching, 0);
    strcpy(end_path, path);
    atomic_store(&owner_pid, getpid());
    atomic_store(&is_told, 0);
    if (!atomic_exchange(&is_registered, 1)) on_exit(at_exit, NULL);
    atomic_store(&is_watching, 1);
    watch_signals();
    return 0;
}

void daf_ending_told(void) {
    atomic_store(&is_told, 1);
}

void daf_ending_forget(void) {
    atomic_store(&is_watching, 0);
    leave_signals();
}
