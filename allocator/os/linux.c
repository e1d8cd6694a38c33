/* Linux: see os.h. */
#define _GNU_SOURCE
#include "os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void *dafi_map(uint64_t num_bytes) {
    void *base = mmap(NULL, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

void dafi_unmap(void *base, uint64_t num_bytes) {
    if (base) munmap(base, num_bytes);
}

void dafi_map_prefer_huge(void *base, uint64_t num_bytes) {
    madvise(base, num_bytes, MADV_HUGEPAGE);
}

uint64_t dafi_machine_bytes(void) {
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t dafi_monotonic_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t dafi_wall_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}

void dafi_sleep_ns(uint64_t nanoseconds) {
    struct timespec span = {.tv_sec = (time_t)(nanoseconds / 1000000000u),
                            .tv_nsec = (long)(nanoseconds % 1000000000u)};
    nanosleep(&span, NULL);
}

/* A file of /proc, whose size is not known beforehand, as text; "" where it cannot be read. */
static void read_text(const char *path, char *text, size_t text_bytes) {
    text[0] = '\0';
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    ssize_t got = read(file, text, text_bytes - 1);
    text[got > 0 ? got : 0] = '\0';
    close(file);
}

dafi_process_t dafi_process_now(void) {
    char text[128];
    dafi_process_t process = {0};
    read_text("/proc/self/statm", text, sizeof text);
    const char *second = strchr(text, ' ');
    if (second) process.resident_bytes = strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) process.num_faults = (uint64_t)(usage.ru_minflt + usage.ru_majflt);
    return process;
}

/* Field 22 of /proc/self/stat. The name in field 2 may hold spaces and brackets: count from the last bracket. */
uint64_t dafi_process_start_time(void) {
    char text[1024];
    read_text("/proc/self/stat", text, sizeof text);
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

int dafi_file_create(const char *path) {
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* Not every file system knows nameless files. */
int dafi_file_nameless(const char *folder) {
    int file = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file >= 0) return file;
    char path[4096];
    snprintf(path, sizeof path, "%s/daf-spill-XXXXXX", folder);
    file = mkostemp(path, O_CLOEXEC);
    if (file >= 0) unlink(path);
    return file;
}

bool dafi_file_read(int file, void *to, uint64_t num_bytes, uint64_t offset) {
    for (uint64_t done = 0; done < num_bytes;) {
        ssize_t got = pread(file, (uint8_t *)to + done, num_bytes - done, (off_t)(offset + done));
        if (got > 0)
            done += (uint64_t)got;
        else if (got == 0 || errno != EINTR)
            return false;
    }
    return true;
}

bool dafi_file_write(int file, const void *from, uint64_t num_bytes, uint64_t offset) {
    for (uint64_t done = 0; done < num_bytes;) {
        ssize_t put = pwrite(file, (const uint8_t *)from + done, num_bytes - done, (off_t)(offset + done));
        if (put > 0)
            done += (uint64_t)put;
        else if (put == 0 || errno != EINTR)
            return false;
    }
    return true;
}

uint64_t dafi_file_bytes(int file) {
    struct stat found;
    return fstat(file, &found) == 0 ? (uint64_t)found.st_size : 0;
}

void dafi_file_empty(int file) {
    if (ftruncate(file, 0) != 0) return; /* it only stays longer than needed */
}

void dafi_file_close(int *file) {
    if (*file >= 0) close(*file);
    *file = -1;
}
