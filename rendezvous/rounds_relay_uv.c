#include "rendezvous/rounds_relay_uv.h"

#include "rendezvous/relay_json.h"
#include "rendezvous/rounds_uv.h"
#include "rendezvous/server_impl_uv.h"

static void forward(struct agent_conn *to, const struct buf *frame)
{
    size_t unread = buf_size(&to->out) + buf_size(&to->wire) + buf_size(&to->held);

    if (unread + buf_size(frame) <= AGENT_CONN_OUTPUT_MAX / 2)
        agent_conn_send(to, frame, 0);
}

void rounds_relay(struct agent_conn *a, const struct relay *relay, const uint8_t *body, size_t n)
{
    const struct rounds_node *from = a->session.node;
    struct buf frame = {0};

    if (!from || !from->member || from->job->state != ROUNDS_RUNNING ||
        relay->generation != from->job->generation || frame_put_body(&frame, body, n) != 0)
        return;
    list_for_each(i, &from->job->nodes)
    {
        const struct rounds_node *to = list_entry(i, struct rounds_node, in_job);

        if (to != from && to->member && to->can_relay && to->session &&
            (relay->to == RELAY_TO_ALL || relay->to == to->group_rank))
            forward(list_entry(to->session, struct agent_conn, session), &frame);
    }
    buf_finish(&frame);
    rounds_shell_flush(a->server->rounds);
}
