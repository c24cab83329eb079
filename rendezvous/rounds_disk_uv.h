#pragma once

/*
 * The rounds' state on disk: a directory with one file for each job (rounds_file_os.h). A file is written
 * under a temporary name, synced and renamed, and the directory synced, so that a crash leaves the old or
 * the new one.
 *
 * A thread of the loop's pool writes, one batch at a time: jobs that are saved meanwhile go into the next
 * batch, each with its last state. So a slow disk delays what depends on it and nothing else.
 *
 * When the disk fails (full, unplugged), a line is logged and the rounds go on: stopping a job because its
 * state cannot be saved would be the worse failure, and agents that reconnect report what the saved state
 * lacks. The same
 * holds when a write takes longer than the limit, until it ends.
 *
 * All functions but open take a disk that is NULL where nothing is kept, and then do nothing.
 */

#include <stdint.h>

struct rounds;
struct rounds_disk;
struct rounds_job;
struct rounds_shell;

/* Creates the directory if it is not there, and locks it. limit_ms: see server_rounds.h. 0 or -errno; a sentence was
 * logged. */
int rounds_disk_open(struct rounds_disk **ret, struct rounds_shell *shell, const char *dir,
                     unsigned limit_ms);

/*
 * Restores the saved jobs. A file that is not whole is renamed (its name ends in .damaged then) and its job
 * begins anew with what agents report; one that is whole and cannot be used is an error, which the
 * administrator has to resolve. 0 or -errno; a sentence was logged.
 */
int rounds_disk_load(struct rounds_disk *d, struct rounds *rounds, uint64_t now_ns);

/* Nothing is being written any more. */
void rounds_disk_close(struct rounds_disk *d);

/* To be written with the next rounds_disk_start(). */
void rounds_disk_save(struct rounds_disk *d, const struct rounds_job *job);
void rounds_disk_forget(struct rounds_disk *d, const struct rounds_job *job);

/* Begins to write what has changed; rounds_shell_saved() follows. */
void rounds_disk_start(struct rounds_disk *d);

/* The mark that has to be done before what is known of the job now is on disk; 0: it is. */
uint64_t rounds_disk_mark(const struct rounds_disk *d, const struct rounds_job *job);
uint64_t rounds_disk_done(const struct rounds_disk *d);
