#pragma once

/*
 * The state of the job for crunctl: facts of the group machine at the moment of the request. A status waits neither for a disk nor for
 * a driver: crunctl itself reads /proc, log files and GPU drivers.
 */

#include <stdbool.h>

struct agent_host;
struct agent_observer;
struct agent_status;
struct asked_stacks;
struct buf;
struct job_status;
struct named_file;

/* Serves crunctl. The job runs without the socket as well. stacks: of all nodes, where crunctl wants stacks. */
struct agent_status *agent_status_open(struct agent_observer *observer, const struct agent_host *host,
                                       struct asked_stacks *stacks);

/* The job and this node without the additions of other parts. 0 or -ENOMEM; job_status_finish() in both cases. */
int agent_status_describe(const struct agent_status *s, struct job_status *ret);

/* Appends the status of this node as frames (look_json.h). stacks: JSON, or NULL. */
void agent_status_report(const struct agent_host *host, const char *stacks, struct buf *out);

/* See control_file() and control_send_stacks(). NULL is fine for s. */
const struct named_file *agent_status_socket(const struct agent_status *s);
void agent_status_send_stacks(struct agent_status *s, const char *json);
