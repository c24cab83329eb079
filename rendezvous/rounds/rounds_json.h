#pragma once

/*
 * A job's state on disk: the members of its generation, and the charges to its budgets. Connections are not
 * in it (agents reconnect and report their state), and keys of stores neither.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct rounds;
struct rounds_job;

/*
 * Version of the body, its field "crun_rounds".
 *
 * 1  The first. A member that was done and has left was counted in "finished_gone", a member of the generation before
 *    was marked "veteran". Read, but not written any more.
 * 2  "finished_gone" is "done_left", "veteran" is "previous_member". A generation that was ending was saved as "running".
 * 3  It is saved as "ending", perhaps with fewer nodes than "members".
 *
 * A new field that may be missing does not change the version. Renaming, removing or redefining a field does: raise
 * it, add a line here, and either read the older version (old_fields in rounds_json.c) or raise ROUNDS_JSON_OLDEST.
 * A state outside these versions is refused, with both numbers: crund does not start, or does not lead, and leaves the state as it is.
 * Fields that are not known are kept and written again: those of the job, of its parameters and of its nodes.
 */
enum { ROUNDS_JSON_OLDEST = 1, ROUNDS_JSON_VERSION = 3 };

enum { ROUNDS_JSON_ERROR_SIZE = 512 };

/* Appends the job as text, one node a line. 0 or -ENOMEM; the buf may then hold a part of it. */
int rounds_json_save(struct buf *out, const struct rounds_job *job);

/*
 * Adds the saved job to the rounds and waits for its nodes from now on. False, with a sentence in error: it
 * is damaged, of another version, the job is there already, or memory is out; nothing is added then.
 */
bool rounds_json_load(struct rounds *r, const uint8_t *text, size_t n, uint64_t now_ns,
                      char error[ROUNDS_JSON_ERROR_SIZE]);
