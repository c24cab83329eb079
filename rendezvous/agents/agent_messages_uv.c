#include "rendezvous/agents/agent_messages_uv.h"

#include "base/cleanup.h"
#include "rendezvous/session/agent_message_json.h"
#include "rendezvous/agents/rounds_uv.h"

static void forward_message(struct agent_conn *to, const struct buf *frame)
{
    if (agent_conn_unread(to) + buf_size(frame) <= AGENT_CONN_OUTPUT_MAX / 2)
        agent_conn_send(to, frame, 0);
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
        if (to != from && to->member && to->session &&
            (head->to == AGENT_MESSAGE_TO_ALL || head->to == to->group_rank))
            forward_message(list_entry(to->session, struct agent_conn, session), &frame);
    }
    rounds_shell_flush(a->shell);
}
