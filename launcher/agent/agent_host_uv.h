#pragma once

/*
 * Common to the parts of the agent. A part owns its struct and sees the agent by struct agent_host alone. Whatever a part needs of
 * another part is given at its creation, as a pointer or a callback; no two parts call each other. The agent lets each part see the
 * steps of the group machine, in the order of enum agent_part (agent_impl_uv.h).
 */

#include <uv.h>

#include "launcher/agent/agent_uv.h"
#include "launcher/cli/job.h"
#include "launcher/supervise/worker_group.h"
#include "base/time.h"
#include "rendezvous/session/session_message.h"

struct events;
struct generation;
struct job_status;
struct logs;
struct membership;
struct output;
struct watch;
struct worker_memory;

/* The job as seen by parts, and requests of parts to the agent. All parts share one host; its life is the agent's. */
struct agent_host {
    uv_loop_t *loop;
    const struct agent_config *config;
    const struct job *job; /* of the config */
    const struct worker_group *group;
    const struct rank_assignment *assignment; /* of the current or next generation */
    const struct session_cause *peer_cause;   /* why the generation ended, if another node is the reason */
    const struct worker_memory *worker_memory;
    const struct logs *logs;
    struct output *output;
    struct events *events;
    struct generation *generation; /* NULL before the first */
    struct membership *membership; /* JOB_ROUNDS, from the start of the meeting until its end; else NULL */
    struct watch *watch;           /* NULL: the workers are not watched (yet) */
    void *data;                    /* of the functions below */
    void (*dispatch)(void *data, struct group_event event);
    void (*kill_worker)(void *data, int worker,
                        const char *option);           /* option: the option of crun that asks for the kill */
    void (*note_sender)(void *data, const char *text); /* of a signal to stop */
    /* The present state of the job and of this node. 0 or -ENOMEM; job_status_finish() in both cases. */
    int (*describe)(void *data, struct job_status *ret);
};

static inline void host_dispatch(const struct agent_host *host, enum group_event_kind kind, int worker)
{
    host->dispatch(host->data, (struct group_event){.kind = kind, .now_ns = now_ns(), .worker = worker});
}

/* A step of the group machine. */
struct agent_step {
    const struct group_event *event;
    const struct group_actions *actions;
    enum group_state state; /* before the step, like the members below */
    enum group_cause cause;
    int restarts;
};

/* The verbs of a part; each may be NULL. */
struct agent_observer {
    void *self;
    void (*before)(void *self, const struct group_event *event); /* may dispatch further events */
    void (*after)(void *self, const struct agent_step *step);    /* the actions are not carried out yet */
    void (*describe)(void *self,
                     struct job_status *ret); /* adds to host.describe(); ret has this node alone */
    void (*take_message)(void *self, const uint8_t *body,
                         size_t n); /* of another agent (agent_message_json.h) */
    uv_handle_t *handle;            /* closed when the job is over; NULL: none */
    void (*stop)(void *self);       /* the job is over: ends the rest */
};
