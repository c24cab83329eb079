#include "tests/sim/etcd_link.h"

#include <stdlib.h>

#define MS UINT64_C(1000000)

enum { CODE_EXHAUSTED = 8 };

void etcd_link_init(struct etcd_link *l, struct random *random, struct schedule *schedule,
                    uint32_t apply_moment, uint32_t answer_moment)
{
    *l = (struct etcd_link){
        .random = random, .schedule = schedule, .apply_moment = apply_moment, .answer_moment = answer_moment};
    etcd_model_init(&l->model);
}

void etcd_link_finish(struct etcd_link *l)
{
    for (size_t i = 0; i < l->n_flights; i++) {
        etcd_request_finish(&l->flights[i]->request);
        etcd_reply_finish(&l->flights[i]->reply);
        free(l->flights[i]);
    }
    free(l->flights);
    etcd_model_finish(&l->model);
    *l = (struct etcd_link){0};
}

/* One that is over, or another one. */
static struct etcd_flight *new_flight(struct etcd_link *l, size_t *ret)
{
    for (size_t i = 0; i < l->n_flights; i++) {
        struct etcd_flight *f = l->flights[i];

        if (!f->is_answered || !(f->is_applied || f->is_lost))
            continue;
        etcd_request_finish(&f->request);
        etcd_reply_finish(&f->reply);
        *f = (struct etcd_flight){0};
        *ret = i;
        return f;
    }
    if (l->n_flights == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 16;
        l->flights = realloc(l->flights, l->capacity * sizeof(struct etcd_flight *));
        if (!l->flights)
            abort();
    }
    *ret = l->n_flights;
    l->flights[l->n_flights] = calloc(1, sizeof(struct etcd_flight));
    if (!l->flights[l->n_flights])
        abort();
    return l->flights[l->n_flights++];
}

static void schedule_flight(struct etcd_link *l, uint64_t at_ns, uint32_t kind, const struct etcd_flight *f,
                            size_t number)
{
    schedule_add(l->schedule, at_ns, kind, f->sender, number);
}

/* Never arrives, and that is known or not. */
static uint64_t lose_flight(struct etcd_link *l, uint64_t now_ns, struct etcd_flight *f, size_t number)
{
    bool is_known = random_percent(l->random, 60);
    uint64_t at_ns = now_ns + (is_known ? random_between(l->random, 1, 700) : ETCD_LINK_REQUEST_MS) * MS;

    f->is_lost = true;
    f->is_unsent = is_known;
    f->is_unknown = !is_known;
    schedule_flight(l, at_ns, l->answer_moment, f, number);
    return at_ns;
}

/* Arrives late, perhaps when its sender has given up. */
static uint64_t delay_flight(struct etcd_link *l, uint64_t now_ns, struct etcd_flight *f, size_t number)
{
    uint64_t after_ns = random_between(l->random, 1, 2) == 1
                            ? random_between(l->random, 1, ETCD_LINK_REQUEST_MS) * MS
                            : random_between(l->random, ETCD_LINK_REQUEST_MS, 12000) * MS;
    uint64_t at_ns = now_ns + ETCD_LINK_REQUEST_MS * MS;

    f->is_unknown = true;
    schedule_flight(l, at_ns, l->answer_moment, f, number);
    schedule_flight(l, now_ns + after_ns, l->apply_moment, f, number);
    return at_ns;
}

uint64_t etcd_link_send(struct etcd_link *l, uint64_t now_ns, unsigned sender, uint64_t life,
                        enum etcd_lane_of_crund lane, struct etcd_request *request, bool is_cut)
{
    size_t number;
    struct etcd_flight *f = new_flight(l, &number);
    uint64_t there_ns = random_between(l->random, 200, random_percent(l->random, 5) ? 400000 : 5000) * 1000;

    f->request = *request;
    f->sender = sender;
    f->life = life;
    f->lane = lane;
    if (is_cut || l->is_down)
        return (random_percent(l->random, 70) ? lose_flight : delay_flight)(l, now_ns, f, number);
    if (random_percent(l->random, l->fault_percent))
        return (random_percent(l->random, 40) ? lose_flight : delay_flight)(l, now_ns, f, number);
    schedule_flight(l, now_ns + there_ns, l->apply_moment, f, number);
    return now_ns + there_ns + 3 * MS;
}

/* As in etcd: deletions and renewals take no space. */
static bool writes(const struct etcd_request *r)
{
    for (size_t i = 0; i < r->n_ops; i++)
        if (r->ops[i].kind == ETCD_PUT)
            return true;
    return r->kind == ETCD_GRANT;
}

void etcd_link_apply(struct etcd_link *l, uint64_t now_ns, size_t number)
{
    struct etcd_flight *f = l->flights[number];

    if (l->is_down) { /* a proposal that waits for a majority */
        schedule_flight(l, now_ns + 500 * MS, l->apply_moment, f, number);
        return;
    }
    f->is_applied = true;
    if (l->is_full && writes(&f->request))
        f->reply = (struct etcd_reply){.outcome = ETCD_REFUSED,
                                       .code = CODE_EXHAUSTED,
                                       .error = "etcdserver: mvcc: database space exceeded"};
    else
        etcd_model_apply(&l->model, &f->request, now_ns, &f->reply);
    if (!f->is_unknown)
        schedule_flight(l, now_ns + random_between(l->random, 100, 3000) * 1000, l->answer_moment, f, number);
}

bool etcd_link_has_answer(const struct etcd_link *l, size_t number)
{
    const struct etcd_flight *f = l->flights[number];

    return !f->is_unsent && !f->is_unknown && f->reply.outcome == ETCD_OK;
}

bool etcd_link_answer(struct etcd_link *l, size_t number, struct etcd_leader *core, uint64_t life,
                      uint64_t clock_ns)
{
    struct etcd_flight *f = l->flights[number];
    struct etcd_reply failure = {.outcome = f->is_unsent ? ETCD_NOT_SENT : ETCD_UNKNOWN,
                                 .error = "no answer"};
    struct etcd_reply *reply = f->is_unsent || f->is_unknown ? &failure : &f->reply;

    f->is_answered = true;
    if (!core || f->life != life)
        return false;
    if (f->lane == ETCD_LINK_WORK)
        etcd_leader_take_work(core, reply, clock_ns);
    else
        etcd_leader_take_lease(core, reply, clock_ns);
    return true;
}
