#pragma once

/*
 * A hang of several nodes: a single report on all nodes. Each agent sends the state of its ranks to node 0. Node 0 makes the report and
 * sends the report to all agents, and each agent prints the text and writes an event. An agent without a report after RESULT_MS prints
 * a report on its own node: node 0, or the rendezvous, may hang.
 */

#include <stdbool.h>
#include <stdint.h>

#include "launcher/report/events.h"
#include "launcher/watch/hang_collect.h"

struct agent_host;
struct hang_reports;
struct hang_notice;
struct watch_stacks;

/* on_report: prints the report. acts: --hang-action has waited for the report, because of `worker`. */
struct hang_reports *hang_reports_create(const struct agent_host *host,
                                         void (*on_report)(void *data, const struct event_hang *hang,
                                                           bool acts, int worker),
                                         void *data);

/* The ranks of the own node hang. on_report() follows, at once where no other node can be asked. */
void hang_reports_begin(struct hang_reports *r, const struct watch_stacks *s);

/* From another node. */
void hang_reports_add(struct hang_reports *r, const struct hang_piece *piece);
void hang_reports_take(struct hang_reports *r, const struct hang_notice *notice);

/* The files of the stacks are complete. True: --hang-action waits for the report on all nodes. */
bool hang_reports_defer(struct hang_reports *r, int worker);

/* No report is waited for any more. */
void hang_reports_end(struct hang_reports *r);

/* The same at the end of the job: closes the handle. free() when the loop has ended. */
void hang_reports_stop(struct hang_reports *r);

/* The report on the own node alone. */
struct event_hang hang_report_own(const struct agent_host *host, const struct watch_stacks *s);

/* The ranks of the own node, as pieces: to another agent, or for a report of the own agent. */
void hang_report_send(const struct agent_host *host, const struct hang_rank *ranks, size_t n_ranks,
                      int32_t to, enum hang_purpose purpose);
bool hang_report_collect(const struct agent_host *host, const struct hang_rank *ranks, size_t n_ranks,
                         struct hang_collect *ret); /* see hang_collect_add() */

/* To a group rank or AGENT_MESSAGE_TO_ALL. False: without a connection or memory the notice is lost. */
bool hang_report_notify(const struct agent_host *host, int32_t to, const struct hang_notice *notice);

/* The lines, and an event of that kind. */
void hang_report_print(const struct agent_host *host, enum event_kind kind, const struct event_hang *hang);
