/* Everything the arena asks of the operating system but memory for its zones (backend.h). Threads: all at once. None of
 * these is called under an arena's lock but where it says so. */
#ifndef DAF_OS_H
#define DAF_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory for our own books: zeroed, touched lazily; NULL: refused. Opening an arena only. */
void *dafi_map(uint64_t num_bytes);
void dafi_unmap(void *base, uint64_t num_bytes);
void dafi_map_prefer_huge(void *base, uint64_t num_bytes);
uint64_t dafi_machine_bytes(void);

uint64_t dafi_monotonic_ns(void); /* also under the lock: no system call where the clock is in user space */
uint64_t dafi_wall_ns(void);      /* also under the lock */
void dafi_sleep_ns(uint64_t nanoseconds);

typedef struct dafi_process {
    uint64_t resident_bytes, num_faults; /* of the whole process, as the system counts them */
} dafi_process_t;
dafi_process_t dafi_process_now(void);
uint64_t dafi_process_start_time(void); /* clock ticks since boot: with the pid it names a process for ever */

/* Files are read and written, never mapped: one that another process cuts off is an error, and no bus error. -1: errno
 * says why. */
int dafi_file_create(const char *path);     /* new, for this user alone */
int dafi_file_nameless(const char *folder); /* is gone with its last descriptor, however the process ends */
bool dafi_file_read(int file, void *to, uint64_t num_bytes, uint64_t offset); /* all of it; spilling: under the lock */
bool dafi_file_write(int file, const void *from, uint64_t num_bytes,
                     uint64_t offset); /* all of it; spilling: under the lock */
uint64_t dafi_file_bytes(int file);
void dafi_file_empty(int file);  /* under the lock: the spill file */
void dafi_file_close(int *file); /* -1 afterwards, and may be so before */

#endif
