#include "rendezvous/agents/agent_messages_uv.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "rendezvous/session/agent_message_json.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

static void forward_message(struct agent_conn *to, const struct buf *frame)
{
    if (agent_conn_unread(to) + buf_size(frame) <= AGENT_CONN_OUTPUT_MAX / 2)
        agent_conn_send(to, frame, 0);
}

static bool may_get(const struct rounds_node *to)
{
    return to->member && to->session;
}

/* One agent's order. False: it is not sent. */
static bool send_stack_order(const struct rounds_node *n, uint32_t to)
{
    const struct agent_message head = {.to = n->group_rank, .generation = n->job->generation};
    _cleanup_(buf_finish) struct buf frame = {0};
    char json[32];

    (void)snprintf(json, sizeof(json), "{\"to\":%u}", (unsigned)to); /* fits */
    if (agent_message_put(&frame, &head, "take", json) != 0)
        return false;
    forward_message(list_entry(n->session, struct agent_conn, session), &frame);
    return true;
}

unsigned agent_messages_ask_for_stacks(struct rounds_shell *r, const char *id, uint32_t to)
{
    unsigned n_asked = 0;

    rounds_each_job(job, &r->core)
    {
        if (job->replaced || job->state != ROUNDS_RUNNING || strcmp(job->id, id) != 0)
            continue;
        job_each_node(n, job) n_asked +=
            may_get(n) && n->group_rank != (int32_t)to && send_stack_order(n, to);
    }
    rounds_shell_flush(r);
    return n_asked;
}

void agent_messages_forward(struct agent_conn *a, const struct agent_message *head, const uint8_t *body,
                            size_t n)
{
    const struct rounds_node *from = a->session.node;
    _cleanup_(buf_finish) struct buf frame = {0};

    if (!from || !from->member || from->job->state != ROUNDS_RUNNING ||
        head->generation != from->job->generation || frame_put_body(&frame, body, n) != 0)
        return;
    job_each_node(to, from->job)
    {
        if (to != from && may_get(to) && (head->to == AGENT_MESSAGE_TO_ALL || head->to == to->group_rank))
            forward_message(list_entry(to->session, struct agent_conn, session), &frame);
    }
    rounds_shell_flush(a->shell);
}
