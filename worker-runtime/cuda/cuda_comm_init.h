#pragma once

/*
 * How a communicator comes into being, decided without clock, store or NCCL: an event with its time goes in,
 * the next action comes out.
 *
 *   begin -> id (rank 0 makes it, the others fetch it) -> init, polled -> vote -> all voted yes -> probe
 *   -> done
 *
 * A rank whose NCCL fails, or that waits too long, votes no; each rank that reads a no gives the attempt up,
 * and all begin again with a new id, as often as allowed. A rank whose probe fails votes no, too, which ends it for
 * good; so does what cannot be agreed on (a rank does not vote, the launcher reports that the group is over): the
 * launcher then starts another generation.
 *
 * Deadlines: until its own vote a rank has timeout_ns. Votes may come as late again, because the rank that is
 * waited for votes no only when its own time is over. The probe has timeout_ns of its own.
 */

#include <stdbool.h>
#include <stdint.h>

enum comm_state {
    COMM_IDLE,
    COMM_NEEDS_ID,
    COMM_INITIALISING,
    COMM_VOTING,
    COMM_PROBING,
    COMM_READY,
    COMM_FAILED,
    COMM_STATE_COUNT
};

enum comm_event_kind {
    COMM_EVENT_BEGIN,
    COMM_EVENT_ID,    /* the id is known */
    COMM_EVENT_BUSY,  /* what was started goes on */
    COMM_EVENT_DONE,  /* what was started is finished; a vote was cast */
    COMM_EVENT_ERROR, /* NCCL or the device refused */
    COMM_EVENT_OVER,  /* the group is over, or the store failed */
    COMM_EVENT_KIND_COUNT
};

struct comm_event {
    enum comm_event_kind kind;
    int64_t now_ns;
    int64_t n_yes, n_no; /* votes of this attempt, as far as known */
};

enum comm_action {
    COMM_MAKE_ID, /* and publish it */
    COMM_FETCH_ID,
    COMM_INIT,
    COMM_POLL,
    COMM_VOTE_YES,
    COMM_COUNT_VOTES,
    COMM_VOTE_NO, /* abort what there is, vote no, then begin the next attempt */
    COMM_RETREAT, /* abort what there is, then begin the next attempt: another rank voted no */
    COMM_PROBE,   /* the first all-reduces: they make the connections, and are checked */
    COMM_FINISH,  /* ready */
    COMM_GIVE_UP, /* abort what there is; why is in the machine */
    COMM_ACTION_COUNT
};

enum comm_why {
    COMM_WHY_NOTHING,
    COMM_WHY_TIMEOUT, /* in the state that `when` names */
    COMM_WHY_ERROR,
    COMM_WHY_VOTED_DOWN,
    COMM_WHY_OVER,
    COMM_WHY_COUNT
};

struct comm_init {
    int rank, world_size;
    int n_attempts_max;
    int64_t timeout_ns;

    enum comm_state state;
    int attempt; /* from 0 */
    int64_t deadline_ns;
    enum comm_why why; /* of the last attempt that failed */
    enum comm_state when;
};

enum comm_action comm_init_step(struct comm_init *m, const struct comm_event *e);

/* "nothing", "a deadline", ...; for sentences. */
const char *comm_why_name(enum comm_why why);
const char *comm_state_name(enum comm_state state);
