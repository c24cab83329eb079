#pragma once

/*
 * Files of lines that crun itself writes: --event-log, --debug and the history of jobs. A thread opens the file and writes the
 * lines, so that a disk that hangs or is full does not delay the job.
 */

struct line_file;

/*
 * Opens the file for appending and starts the thread. title: what the file is, in a sentence. Returns 0 or -errno. When the
 * disk has not answered after a quarter of a second: 0, and an error is reported by the next line_file_write().
 *
 * title NULL: the history of all jobs of the user. The thread starts later, makes the folder, and renames a file longer than
 * HISTORY_MAX to PATH.1 before. A failure is not reported: no option asked for a history.
 */
enum { HISTORY_MAX = 1 << 20 };
int line_file_open(struct line_file **ret, const char *path, const char *title);

/* Starts the thread of a history, if there is a line. Until then, or until line_file_close(), lines are kept in memory: a job
 * that ends soon writes all of them at once, and its start does not wait for the thread. NULL is fine. */
void line_file_begin_history(struct line_file *f);

/* Whole lines, copied. What cannot be written is reported once, and dropped. NULL is fine. */
void line_file_write(struct line_file *f, const char *lines);

/* Waits for what is left, two seconds at most, and ends. NULL is fine. */
void line_file_close(struct line_file *f);
