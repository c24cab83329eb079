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
 * Version of the file. A field that may be missing does not change it. To change the meaning of one: give
 * the field another name; raise this only when an older crund must not go on with a newer one's state.
 */
enum { ROUNDS_JSON_VERSION = 1 };

enum { ROUNDS_JSON_ERROR_SIZE = 512 };

/* Appends the job as text, one node a line. 0 or -ENOMEM; the buf may then hold a part of it. */
int rounds_json_save(struct buf *out, const struct rounds_job *job);

/*
 * Adds the saved job to the rounds and waits for its nodes from now on. False, with a sentence in error: it
 * is damaged, of another version, the job is there already, or memory is out; nothing is added then.
 */
bool rounds_json_load(struct rounds *r, const uint8_t *text, size_t n, uint64_t now_ns,
                      char error[ROUNDS_JSON_ERROR_SIZE]);
