#include "worker-runtime/cuda/cuda_comm_init.h"

static const char *const whys[COMM_WHY_COUNT] = {
    [COMM_WHY_NOTHING] = "nothing",        [COMM_WHY_TIMEOUT] = "the deadline passed",
    [COMM_WHY_ERROR] = "NCCL failed here", [COMM_WHY_VOTED_DOWN] = "another rank failed",
    [COMM_WHY_OVER] = "the group is over",
};

static const char *const states[COMM_STATE_COUNT] = {
    [COMM_IDLE] = "before it began",
    [COMM_NEEDS_ID] = "waiting for rank 0's id",
    [COMM_INITIALISING] = "waiting for NCCL to connect",
    [COMM_VOTING] = "waiting for the other ranks' votes",
    [COMM_PROBING] = "waiting for the first all-reduce",
    [COMM_READY] = "when ready",
    [COMM_FAILED] = "after it failed",
};

const char *comm_why_name(enum comm_why why)
{
    return whys[why];
}

const char *comm_state_name(enum comm_state state)
{
    return states[state];
}

static enum comm_action give_up(struct comm_init *m, enum comm_why why)
{
    m->why = why;
    m->when = m->state;
    m->state = COMM_FAILED;
    return COMM_GIVE_UP;
}

/* action: how this rank leaves the attempt, if there may be another. */
static enum comm_action leave_attempt(struct comm_init *m, enum comm_why why, enum comm_action action)
{
    m->why = why;
    m->when = m->state;
    m->attempt++;
    /* A rank votes no in its last attempt too, so that the others need not wait for its vote. */
    m->state = m->attempt < m->n_attempts_max ? COMM_IDLE : COMM_FAILED;
    return action;
}

static enum comm_action begin_comm_attempt(struct comm_init *m, const struct comm_event *e)
{
    if (m->state == COMM_FAILED)
        return COMM_GIVE_UP;
    m->deadline_ns = e->now_ns + m->timeout_ns;
    m->state = COMM_NEEDS_ID;
    return m->rank == 0 ? COMM_MAKE_ID : COMM_FETCH_ID;
}

static enum comm_action voted(struct comm_init *m, const struct comm_event *e)
{
    if (e->n_yes < m->world_size)
        return COMM_COUNT_VOTES;
    m->state = COMM_PROBING;
    m->deadline_ns = e->now_ns + m->timeout_ns;
    return COMM_PROBE;
}

/* Something that goes well, in the state it goes well in. */
static enum comm_action proceed(struct comm_init *m, const struct comm_event *e)
{
    const bool done = e->kind == COMM_EVENT_DONE;
    switch (m->state) {
    case COMM_NEEDS_ID:
        if (e->kind != COMM_EVENT_ID)
            return COMM_FETCH_ID;
        m->state = COMM_INITIALISING;
        return COMM_INIT;
    case COMM_INITIALISING:
        if (!done)
            return COMM_POLL;
        m->state = COMM_VOTING;
        m->deadline_ns += m->timeout_ns;
        return COMM_VOTE_YES;
    case COMM_VOTING:
        return voted(m, e);
    case COMM_PROBING:
        if (!done)
            return COMM_POLL;
        m->state = COMM_READY;
        return COMM_FINISH;
    case COMM_READY:
        return COMM_FINISH;
    case COMM_IDLE:
    case COMM_FAILED:
    case COMM_STATE_COUNT:
        break;
    }
    return COMM_GIVE_UP;
}

/* Before its vote a rank can still end the attempt for all. */
static bool undecided(const struct comm_init *m)
{
    return m->state == COMM_NEEDS_ID || m->state == COMM_INITIALISING;
}

/* Too late for another attempt when the probe fails, but the others need not wait for theirs. */
static enum comm_action refuse_attempt(struct comm_init *m, enum comm_why why)
{
    if (m->state == COMM_PROBING)
        m->n_attempts_max = m->attempt + 1;
    if (undecided(m) || m->state == COMM_PROBING)
        return leave_attempt(m, why, COMM_VOTE_NO);
    return give_up(m, why);
}

/* A no behind the yes of all ranks comes from a failed probe, and ends it. */
static enum comm_action told_no(struct comm_init *m, const struct comm_event *e)
{
    const bool all_said_yes =
        m->state == COMM_PROBING || (m->state == COMM_VOTING && e->n_yes >= m->world_size);
    return all_said_yes ? give_up(m, COMM_WHY_VOTED_DOWN)
                        : leave_attempt(m, COMM_WHY_VOTED_DOWN, COMM_RETREAT);
}

enum comm_action comm_init_step(struct comm_init *m, const struct comm_event *e)
{
    if (e->kind == COMM_EVENT_BEGIN)
        return begin_comm_attempt(m, e);
    if (e->kind == COMM_EVENT_OVER)
        return give_up(m, COMM_WHY_OVER);
    if (e->kind == COMM_EVENT_ERROR)
        return refuse_attempt(m, COMM_WHY_ERROR);
    if (e->n_no > 0 && m->state != COMM_READY)
        return told_no(m, e);

    enum comm_state before = m->state;
    enum comm_action action = proceed(m, e);
    /* What was reached at the last moment is reached; what still waits has waited long enough. */
    if (m->state != before || e->now_ns < m->deadline_ns)
        return action;
    return refuse_attempt(m, COMM_WHY_TIMEOUT);
}
