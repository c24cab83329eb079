#pragma once

/*
 * Internal to the rounds: what rounds.c (events and actions), rounds_job.c (the life of a job),
 * rounds_ranks.c (rank assignment) and rounds_table.c (jobs and nodes in memory) share, and what
 * rounds_json.c restores.
 */

#include "rendezvous/rounds/rounds.h"

static inline uint64_t ms_to_ns(uint32_t ms)
{
    return ms * UINT64_C(1000000);
}

/* The last report is about the present generation. */
static inline bool node_is_current(const struct rounds_node *n)
{
    return !n->foreign && n->generation == n->job->generation;
}

/* ---- rounds_table.c ---- */

/* NULL when memory is out. */
struct rounds_job *job_create(struct rounds *r, const char *id, const struct session_params *params);
/* The job of this agent: the tombstone whose instance or node it names, or else the job that has the id now. */
struct rounds_job *job_find_of_agent(struct rounds *r, const struct session_hello *hello);
/* CLOSED: gives its id free, and forgets the oldest tombstone when there are too many. */
void job_make_tombstone(struct rounds_job *job);
/* Takes the job and all of its nodes out of the rounds; ROUNDS_DO_FORGET follows. */
void job_forget(struct rounds_job *job);
/* Frees the job without ROUNDS_DO_FORGET (a load that failed). */
void job_discard(struct rounds_job *job);
void job_destroy(struct rounds_job *job);

/* NULL when memory is out; the job is unchanged then. */
struct rounds_node *node_create(struct rounds_job *job, struct session_nonce nonce);
struct rounds_node *node_find(struct rounds_job *job, struct session_nonce nonce);
/* Frees it; its session is being closed. */
void node_destroy(struct rounds_node *n);

/* NULL: the connection is lost. */
void node_set_session(struct rounds_node *n, struct rounds_conn *session);

/* Sets two traits of the node, and the job's count of members that are not quiet: each view asks for the count. */
void node_set_traits(struct rounds_node *n, bool member, bool quiet);

/* What n->state has to be now. */
enum rounds_node_state node_state_now(const struct rounds_node *n);

/* Decides n->state anew after something it depends on changed, and keeps the job's counts. */
void node_update_state(struct rounds_node *n);

/* It may have workers, as far as it has reported and was ordered. */
bool node_may_have_workers(const struct rounds_node *n);

/* It is lost, and is kept until its lease has ended. */
void node_fence(struct rounds_node *n, uint64_t until_ns);

/* A frame of the node arrived: restarts its silence timer. */
void node_heard(struct rounds_node *n, uint64_t now_ns);

/* See ROUNDS_SLOW. */
void node_slow(struct rounds_node *n, uint64_t slack_ns);

void node_want_view(struct rounds_node *n);
void node_want_alive(struct rounds_node *n);
void job_want_save(struct rounds_job *job);
void job_want_log(struct rounds_job *job, enum rounds_log_kind log_kinds);

/* Separates the connection from its node and closes it. */
void conn_end(struct rounds *r, struct rounds_conn *s);

/* ---- rounds_check.c ---- */

/* Asserts the invariants; does nothing without assertions. */
void rounds_check(struct rounds *r);

/* ---- rounds_ranks.c ---- */

/* Makes the best of the ready nodes members and gives them their ranks. */
void job_assign_ranks(struct rounds_job *job);

/* ---- rounds_cut.c ---- */

/* Every member has answered, and the cause is known: if it is a cut between two of them, names it, and leaves one of them out where enough
 * others are there. */
void job_judge_cut(struct rounds_job *job, uint64_t now_ns);

/* Nodes that were left out for a cut may be members again. */
void job_readmit_cut(struct rounds_job *job);

/* The same for those whose other side is not there any more, or is left out itself. */
void job_readmit_single(struct rounds_job *job);

/* ---- rounds_waiting.c ---- */

/* Composes job->waiting anew. */
void job_describe_waiting(struct rounds_job *job, uint64_t now_ns);

/* Composes job->unfit anew. */
void job_describe_unfit(struct rounds_job *job);

/* Whether the job has fewer nodes than it needs without those that are unfit. */
bool job_needs_unfit(const struct rounds_job *job);

/* A node was refused since a parameter of its job is another one: the nodes that wait are shown that. */
void job_note_refused(struct rounds_job *job, const char *host, const char *parameter, const char *in_job,
                      const char *on_node);

/* ---- rounds_job.c ---- */

void job_begin(struct rounds_job *job, uint64_t now_ns);

/* A job that was read from disk, with its nodes: gives these the grace to return. */
void job_resume(struct rounds_job *job, uint64_t now_ns);

/* The present generation cannot go on because of what happened at when_ns. While it is ENDING: an earlier
 * cause replaces a later one. */
void job_end_generation(struct rounds_job *job, const struct session_cause *cause, uint64_t when_ns,
                        uint64_t now_ns);

/* What this node knows to have been charged, see rounds_node.known_restarts. GATHERING. */
void job_learn_charges(struct rounds_node *n);

/* The generation has ended already, and the saved state did not have that: gathers for the next one without a charge. */
void job_abandon_generation(struct rounds_job *job, uint64_t now_ns);

/* It has no nodes, and another job gets its id: stays as a tombstone where a member may still ask for its result. */
void job_replace(struct rounds_job *job, uint64_t now_ns);

void job_close(struct rounds_job *job, enum session_verdict verdict, const struct session_cause *cause,
               uint64_t now_ns);

/* A node asks that all workers snapshot and end. */
void job_drain(struct rounds_job *job);

/* No worker of any member makes progress. */
bool job_is_quiet(const struct rounds_job *job);

/* Whether the workers of n make progress, and those of a node that is done have ended. When n was the last member that did,
 * all get a view. */
void job_take_quiet(struct rounds_node *n, const struct session_report *report);

/* No generation of a job with a lease forms before. */
void job_fence_until(struct rounds_job *job, uint64_t until_ns);

/* When the last lease ends that a node of the job may have; 0: none has one. */
uint64_t job_fence_end(const struct rounds_job *job);

/* All of its nodes are lost, or there are none. */
bool job_is_abandoned(const struct rounds_job *job);

/* The report of the node has a signal that is to stop the whole job. */
void job_stop(const struct rounds_node *n, const struct session_report *report, uint64_t now_ns);

/* The node is lost or has left. */
void job_lose(struct rounds_node *n, enum session_cause_kind kind, const char *text, uint64_t now_ns);

/* Something changed: carries the job on as far as it goes. The job may be forgotten afterwards. */
void job_advance(struct rounds_job *job, uint64_t now_ns);

/* A node has lost its connection: notice from now on when the daemon itself does not run. */
void job_watch_stalls(struct rounds_job *job, uint64_t now_ns);

/* Time has passed; late_ns: how much longer than it should have been. */
void job_tick(struct rounds_job *job, uint64_t now_ns, uint64_t late_ns);

/* Moves the ends of waits for agents. Not the silence of nodes, as signs of life are answered meanwhile, nor the last call: that waits for
 * newcomers, which come without a view. */
void job_postpone(struct rounds_job *job, uint64_t by_ns);

uint64_t job_deadline(const struct rounds_job *job);

/* The nodes that job_tick() would take for dead, see rounds_overdue(). */
size_t job_overdue(const struct rounds_job *job, uint64_t now_ns, struct rounds_conn **ret, size_t max);
