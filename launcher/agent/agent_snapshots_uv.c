#include "launcher/agent/agent_snapshots_uv.h"

#include <errno.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "launcher/agent/agent_host_uv.h"
#include "launcher/rdzv/membership_uv.h"
#include "launcher/snapshots/round_message_json.h"
#include "launcher/snapshots/snapshots_uv.h"

struct agent_snapshots {
    const struct agent_host *host;
    struct snapshots *snapshots; /* NULL: no memory was lent, or the job is over */
    bool has_begun;
    uint32_t generation; /* that has begun */
};

static void send_message(void *data, int32_t to, const struct round_message *message)
{
    const struct agent_snapshots *a = data;
    const struct agent_message head = {.to = to, .generation = a->generation};
    _cleanup_(buf_finish) struct buf frames = {0};

    if (a->host->membership && round_message_put(&frames, &head, message) == 0)
        (void)membership_send(a->host->membership, &frames); /* lost: sent again */
}

static void take_message(void *self, const uint8_t *body, size_t n)
{
    const struct agent_snapshots *a = self;
    struct agent_message head;
    struct round_message message;

    if (a->snapshots && a->has_begun && round_message_get(body, n, &head, &message) &&
        head.generation == (int64_t)a->generation)
        snapshots_take(a->snapshots, &message);
}

/* The first worker of a generation has started. Workers that stay from the generation before go on writing. */
static void begin_generation(void *self, const struct group_event *event)
{
    struct agent_snapshots *a = self;
    const struct rank_assignment *assignment = a->host->assignment;
    const struct worker_group *g = a->host->group;

    if (event->kind != GROUP_STARTED || !a->snapshots || (a->has_begun && g->generation == a->generation))
        return;
    a->has_begun = true;
    a->generation = g->generation;
    const struct snapshot_place place = {.instance = assignment->instance,
                                         .generation = g->generation,
                                         .world_size = assignment->world_size,
                                         .node = (int32_t)assignment->group_rank,
                                         .n_nodes = (int32_t)assignment->group_world_size};
    snapshots_begin(a->snapshots, &place);
}

static void stop_snapshots(void *self)
{
    struct agent_snapshots *a = self;

    snapshots_close(steal_ptr(a->snapshots));
}

int agent_snapshots_create(struct agent_observer *observer, const struct agent_host *host)
{
    static struct agent_snapshots snapshots; /* a process has one agent */
    struct agent_snapshots *a = &snapshots;
    const struct snapshots_host snapshots_host = {
        .loop = host->loop, .memory = host->worker_memory, .send = send_message, .data = a};

    a->host = host;
    int r = snapshots_open(&a->snapshots, &snapshots_host);
    if (r && r != -ENODEV)
        return r;
    *observer = (struct agent_observer){
        .self = a, .before = begin_generation, .take_message = take_message, .stop = stop_snapshots};
    return 0;
}
