#pragma once

/*
 * The file of --event-log. A thread of its own writes the lines, so that a disk that hangs or is full does not delay the job.
 */

struct event_file;

/* Opens the file for appending and starts the thread. 0, or -errno with a message on stderr. */
int event_file_open(struct event_file **ret, const char *path);

/*
 * The same for the history of all jobs of the user: the thread makes its folder and opens it, so that no disk is waited for;
 * a file that is longer than HISTORY_MAX is renamed to PATH.1 before. What fails is not reported: nothing asked for it.
 */
enum { HISTORY_MAX = 1 << 20 };
int event_file_open_history(struct event_file **ret, const char *path);

/* Whole lines, copied. What cannot be written is reported once, and dropped. NULL is fine. */
void event_file_write(struct event_file *f, const char *lines);

/* Waits for what is left, two seconds at most, and ends. NULL is fine. */
void event_file_close(struct event_file *f);
