#pragma once

/*
 * Looking at jobs: a client may ask what the rounds know of jobs and what their agents report of themselves. An agent reports
 * only while its job is looked at: each look asks the agents of that job to send their status, once a second for
 * LOOK_WATCH_MS. Nothing of it reaches the core.
 *
 * Who may look: root and the own user over a unix socket, all jobs; a client that has proved the key of a job, that job; one
 * that has proved the administrator's key, all jobs. Others are refused.
 */

#include <stddef.h>
#include <stdint.h>

struct agent_conn;
struct buf;
struct look_piece;
struct look_request;
struct rounds_shell;

/* NULL: it may; else a sentence. */
const char *rounds_look_fault(struct agent_conn *a, const struct look_request *request);

/* Appends the answer as frames, at most max bytes and a node. 0 or -ENOMEM. */
int rounds_look(struct rounds_shell *r, const struct look_request *request, size_t max, struct buf *out);

/* A piece of the status that an agent was asked for; others are dropped. */
void rounds_look_status(struct agent_conn *a, const struct look_piece *piece, const uint8_t *body, size_t n);

/* The connection is being closed. */
void rounds_look_forget(struct agent_conn *a);
