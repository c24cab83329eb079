#include "launcher/agent/asked_stacks_uv.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/agent/agent_host_uv.h"
#include "launcher/agent/hang_report_uv.h"
#include "launcher/ctl/hang_message_json.h"
#include "launcher/ctl/job_stacks_json.h"
#include "launcher/watch/hang_collect.h"
#include "launcher/watch/watch_uv.h"
#include "base/cleanup.h"
#include "base/time.h"
#include "base/utf8.h"
#include "rendezvous/session/look_json.h"

enum {
    ASKERS_MAX =
        16, /* nodes with a crunctl asking at once; a further node gets a report without some ranks */
    ASKED_MS = 10000, /* for the stacks of all nodes */
    KEEP_MS = 3000,   /* long enough for two statuses */
};

struct asked_stacks {
    const struct agent_host *host;
    void (*send)(void *data, const char *json);
    struct hang_collect
        collect; /* with nodes: crunctl waits for the stacks of all nodes, and the members below are in use */
    bool is_begun; /* the stacks of the own node are there */
    uint64_t generation;
    char *folder;
    uv_timer_t timer;

    bool for_look;          /* a client of the rendezvous asks */
    char *look_json;        /* for a client of the rendezvous; or NULL */
    uint64_t look_ns;       /* when look_json was made */
    int32_t to[ASKERS_MAX]; /* group ranks of nodes waiting for the own node's stacks */
    size_t n_to;
};

static void end_asked(struct asked_stacks *a)
{
    (void)uv_timer_stop(&a->timer); /* cannot fail on a timer that exists */
    hang_collect_finish(&a->collect);
    free(steal_ptr(a->folder));
    a->is_begun = false;
}

/* ---- for a client of the rendezvous ---- */

/* The lines that fit into a piece of the status. NULL: no memory, or no line fits. */
static char *bounded_stacks_json(const struct agent_host *host, const char *folder, const char *text)
{
    _cleanup_free_ char *lines = strdup(text ? text : "");

    while (lines) {
        char *json = job_stacks_to_json(host->job->run_id_text, folder, lines);
        char *end = strrchr(lines, '\n');

        if (!json || strlen(json) <= LOOK_STACKS_JSON_MAX)
            return json;
        free(json);
        if (!end)
            return NULL;
        *end = '\0';
    }
    return NULL;
}

const char *asked_stacks_for_look(const struct asked_stacks *a)
{
    return a->look_json && now_ns() - a->look_ns < KEEP_MS * UINT64_C(1000000) ? a->look_json : NULL;
}

/* ---- of other nodes ---- */

static void deliver_text(struct asked_stacks *a, const char *folder, const char *text)
{
    _cleanup_free_ char *json = job_stacks_to_json(a->host->job->run_id_text, folder, text);

    if (a->for_look) {
        free(a->look_json);
        a->look_json = bounded_stacks_json(a->host, folder, text);
        a->look_ns = now_ns();
    }
    a->for_look = false;
    a->send(a->host->data, json);
}

static void answer_crunctl(uv_timer_t *timer)
{
    struct asked_stacks *a = timer->data;
    _cleanup_free_ char *text = malloc(HANG_TEXT_SIZE);

    if (text) {
        (void)hang_collect_report(&a->collect, text);
        deliver_text(a, a->folder, text);
    } else {
        a->send(a->host->data, NULL);
    }
    end_asked(a);
}

void asked_stacks_add(struct asked_stacks *a, const struct hang_piece *piece)
{
    if (a->generation == a->host->group->generation && hang_collect_add(&a->collect, piece))
        answer_crunctl(&a->timer);
}

/* Otherwise crunctl gets the stacks of the own node. */
static void ask_nodes(struct asked_stacks *a)
{
    const struct agent_host *h = a->host;
    const struct rank_assignment *ranks = h->assignment;
    const struct hang_notice take = {.kind = HANG_NOTICE_TAKE, .node = (int)ranks->group_rank, .rank = -1};

    if (a->collect.n_nodes > 0 || !h->membership || ranks->group_world_size < 2 ||
        h->group->state != GROUP_RUNNING)
        return;
    if (hang_collect_begin(&a->collect, ranks->group_world_size, ranks->world_size) != 0 ||
        !hang_report_notify(h, AGENT_MESSAGE_TO_ALL, &take)) {
        hang_collect_finish(&a->collect);
        return;
    }
    a->generation = h->group->generation;
    (void)uv_timer_start(&a->timer, answer_crunctl, ASKED_MS, 0); /* fails only without a callback */
}

bool asked_stacks_ask(struct asked_stacks *a, bool for_look)
{
    if (!a->host->watch || (for_look && (a->collect.n_nodes > 0 || asked_stacks_for_look(a))))
        return false;
    a->for_look |= for_look;
    (void)watch_take_stacks(a->host->watch,
                            WATCH_ASKED); /* false: stacks are being taken, and will be sent */
    ask_nodes(a);
    return true;
}

/* ---- of the own node ---- */

/* Stacks already being taken are sent. */
void asked_stacks_take_order(struct asked_stacks *a, int32_t to)
{
    bool is_noted = false;

    for (size_t i = 0; i < a->n_to; i++)
        is_noted |= a->to[i] == to;
    if (!is_noted && a->n_to < ASKERS_MAX)
        a->to[a->n_to++] = to;
    (void)watch_take_stacks(a->host->watch, WATCH_ASKED);
}

void asked_stacks_pass(struct asked_stacks *a, const struct watch_stacks *s)
{
    for (size_t i = 0; i < a->n_to; i++)
        hang_report_send(a->host, s->ranks, s->n_ranks, a->to[i], HANG_FOR_CRUNCTL);
    a->n_to = 0;
    if (a->collect.n_nodes == 0) {
        deliver_text(a, s->folder, s->text);
    } else if (!a->is_begun) {
        a->is_begun = true;
        a->folder = s->folder ? strdup(s->folder) : NULL;
        text_copy(a->collect.nccl, sizeof(a->collect.nccl), s->nccl);
        if (hang_report_collect(a->host, s->ranks, s->n_ranks, &a->collect))
            answer_crunctl(&a->timer);
    }
}

/* ---- life ---- */

static void stop_asked_stacks(void *self)
{
    struct asked_stacks *a = self;

    end_asked(a);
    free(steal_ptr(a->look_json));
}

struct asked_stacks *asked_stacks_create(struct agent_observer *observer, const struct agent_host *host,
                                         void (*send)(void *data, const char *json))
{
    static struct asked_stacks stacks; /* a process has one agent */
    struct asked_stacks *a = &stacks;

    *a = (struct asked_stacks){.host = host, .send = send};
    (void)uv_timer_init(host->loop, &a->timer); /* cannot fail */
    a->timer.data = a;
    *observer =
        (struct agent_observer){.self = a, .handle = (uv_handle_t *)&a->timer, .stop = stop_asked_stacks};
    return a;
}
