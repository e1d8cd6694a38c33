/* How the process ended, for those who come after it: one small JSON file beside its stats page.
 *
 * Python tells of exceptions before it leaves; what only the system knows (the exit code, a signal that ends the
 * process at once) is written here, by calls that are safe in a signal handler. Nothing is written by kill -9: that
 * no such file is there says it. */
#ifndef DAF_ENDING_H
#define DAF_ENDING_H

/* From now on the end of this process is written to `path`, until daf_ending_forget. SIGTERM and SIGHUP are watched
 * where nobody else handles them, and end the process as before. Returns 0, or -1 where the path is too long. */
int daf_ending_watch(const char *path);
/* The end has been told by somebody who knows more: only watch signals that come still. */
void daf_ending_told(void);
void daf_ending_forget(void);

#endif
