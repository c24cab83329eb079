#pragma once

/*
 * What workers print, where crun has to do with it: -r (into files), -t (into files and, with prefixes, to
 * the console), filters.
 *
 * A worker writes into a pipe; crun moves the bytes to the log file at once, and from there to the console
 * as fast as that takes them. So a slow or stopped terminal never holds a worker up, and memory stays the
 * same however far the console is behind. If the file cannot be written (disk full), the worker goes on:
 * this is said once, and the console gets its lines from a small buffer instead, at the console's pace.
 */

#include <stdbool.h>
#include <uv.h>

struct job;
struct output;

/* on_end: everything is closed after output_end() or output_abandon(). Returns 0 or -errno; nothing is opened
 * before the first stream. */
int output_create(struct output **ret, uv_loop_t *loop, const struct job *job, char *const *environment,
                  void (*on_end)(void *data), void *data);

/*
 * Prepares the streams of one worker: fills stdio[1] and stdio[2] with descriptors for the worker to write to
 * (the caller closes them when the worker has them), or leaves -1 for crun's own. attempt_dir: NULL without
 * log files. Returns 0, or -errno with a sentence said on stderr.
 */
int output_open_worker(struct output *o, const char *attempt_dir, int local_rank, int stdio[3]);

/*
 * Nothing of the generation is left: takes the rest of what it wrote, into the files completely, to the console
 * as far as that takes it now. The rest goes on from the loop.
 */
void output_flush(struct output *o);

/*
 * crun's own sentences (whole lines), on stderr: behind what finished generations wrote there, before what later
 * ones write. False when they could not be queued.
 */
bool output_say(struct output *o, const char *text);

/* The job is over: ends when the console has taken the rest. */
void output_end(struct output *o);

/* Ends now; what the console has not taken is dropped (it is in the log files), but for crun's own sentences,
 * which get a fraction of a second. */
void output_abandon(struct output *o);

/* After the loop has run dry. NULL is fine. */
void output_destroy(struct output *o);
