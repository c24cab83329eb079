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
 * lacks. The same holds when a write takes longer than the limit, until it ends.
 *
 * Loading: a file that is not whole is renamed (its name ends in .damaged then) and its job begins anew with what
 * agents report: their generations and charges, so no number of a generation is used twice. A file that is whole and cannot be used
 * is an error, which the administrator has to resolve.
 */

struct rounds_shell;
struct rounds_state;

/* Creates the directory if it is not there, and locks it. limit_ms: see server_rounds.h. 0 or -errno; a sentence was
 * logged. */
int rounds_disk_open(struct rounds_state **ret, struct rounds_shell *shell, const char *dir,
                     unsigned limit_ms);
