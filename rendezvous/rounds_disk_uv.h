#pragma once

/*
 * The rounds' state on disk: a directory with one file for each job (rounds_file_os.h). A file is written
 * beside, synced, renamed, and the directory synced, so that a crash leaves the old or the new one.
 *
 * Writing is done by a thread of the loop's pool, one batch at a time: jobs that are saved meanwhile go with
 * the next one, each with its last state. So a slow disk delays what depends on it and nothing else.
 *
 * When the disk fails (full, unplugged), the log says so and the rounds go on: a job that stops because of
 * its notes would be the worse failure, and agents that come back tell what the notes lack.
 *
 * All functions but open take a disk that is NULL where nothing is kept, and then do nothing.
 */

#include <stdint.h>

struct rounds;
struct rounds_disk;
struct rounds_job;
struct rounds_shell;

/* Creates the directory if it is not there, and locks it. 0 or -errno; a sentence was logged. */
int rounds_disk_open(struct rounds_disk **ret, struct rounds_shell *shell, const char *dir);

/*
 * Restores what is there. A file that is not whole is moved aside (its name ends in .damaged then) and its job
 * begins anew with what agents tell; one that is whole and cannot be used stops us, as somebody has to decide.
 * 0 or -errno; a sentence was logged.
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
