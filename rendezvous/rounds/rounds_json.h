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
 * Version of the body, its field "crun_rounds". No release has written versions 1 and 2.
 *
 * A new field that may be missing does not change the version. Renaming, removing or redefining a field does: raise it.
 * A state of another version is refused, with both numbers: crund does not start, or does not lead, and leaves the state as it is.
 * Fields that are not known are ignored.
 */
enum { ROUNDS_JSON_VERSION = 3 };

enum { ROUNDS_JSON_ERROR_SIZE = 512 };

/* Appends the job as text, one node a line. 0 or -ENOMEM; the buf may then hold a part of it. */
int rounds_json_save(struct buf *out, const struct rounds_job *job);

/*
 * Adds the saved job to the rounds and waits for its nodes from now on. False, with a sentence in error: it
 * is damaged, of another version, the job is there already, or memory is out; nothing is added then.
 */
bool rounds_json_load(struct rounds *r, const uint8_t *text, size_t n, uint64_t now_ns,
                      char error[ROUNDS_JSON_ERROR_SIZE]);
