#pragma once

/*
 * The file of --event-log. A thread of its own writes the lines, so that a disk that hangs or is full does not delay the job.
 */

struct event_file;

/* Opens the file for appending and starts the thread. 0, or -errno with a message on stderr. */
int event_file_open(struct event_file **ret, const char *path);

/* Whole lines, copied. What cannot be written is reported once, and dropped. NULL is fine. */
void event_file_write(struct event_file *f, const char *lines);

/* Waits for what is left, two seconds at most, and ends. NULL is fine. */
void event_file_close(struct event_file *f);
