#pragma once

/*
 * Writes the events of a job (events.h) to the file of --event-log, and to standard error with --event-log-handler=console.
 * It observes the group machine and changes nothing there.
 */

#include "launcher/report/events.h"

struct events;
struct failures_outcome;
struct disk_texts;
struct worker_group;
struct group_actions;
struct group_event;
struct job;
struct rank_assignment;
struct session_cause;

/* Once for each process. The history (control_path.h) gets those events that are not about single workers. A file that cannot be
 * opened is reported and left out. file: what is executed. Both must live as long. */
struct events *events_create(const struct job *job, const char *file, char *const *environment);

/* The ranks of the workers of this node, from the next generation on. */
void events_place(struct events *e, const struct rank_assignment *place);

/* After each group_step(), before its actions are carried out. */
void events_step(struct events *e, const struct worker_group *g, const struct group_event *event,
                 const struct group_actions *actions);

/* Another node ended the generation or the job, or has joined; written once for each. */
void events_peer(struct events *e, const struct worker_group *g, const struct session_cause *cause);

/* An event that no step shows: WARM, HANG, STACKS, MARK. */
void events_write(struct events *e, const struct worker_group *g, struct event event);

/* The report on a generation is out and another one follows. */
void events_restart(struct events *e, const struct worker_group *g, const struct failures_outcome *outcome);

/* The job is over. texts: failures_n_texts(). */
void events_end(struct events *e, const struct worker_group *g, const struct failures_outcome *outcome,
                int exit_code, const struct disk_texts *texts);

/* Begins to write the history, which is kept in memory before this and before events_destroy() (line_file_os.h). */
void events_begin_history(struct events *e);

void events_destroy(struct events *e);
