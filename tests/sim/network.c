/*
 * Connections as TCP gives them: what arrives, arrives in order and once; when, and whether, is open. While
 * a direction is blocked nothing passes; what was sent waits, and the sender's kernel may give up on it. An
 * end that is gone answers with a reset. A machine that is gone does not send again what was blocked.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/session/session_json.h"
#include "tests/sim/sim.h"

enum { USER_TIMEOUT_MS = 1200, NEXT_ADDRESS_MS = 250 };

static struct sim_connection *connection_at(struct sim *sim, unsigned connection)
{
    return sim->connections[connection];
}

static uint64_t latency(struct sim *sim)
{
    const struct sim_scenario *sc = &sim->scenario;
    uint64_t ns = random_between(&sim->random, sc->latency_min_ns, sc->latency_max_ns);

    if (sc->spike_percent > 0 && random_percent(&sim->random, sc->spike_percent))
        ns += random_between(&sim->random, 150 * SIM_MS, 400 * SIM_MS);
    if (sim->now_ns < sim->slow_until_ns)
        ns += random_between(&sim->random, 0, 3 * SIM_S);
    return ns;
}

static uint64_t max_ns(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t network_blocked_until_ns(const struct sim *sim, unsigned agent, unsigned daemon, enum sim_end to)
{
    const struct sim_agent *a = &sim->agents[agent];

    return max_ns(a->blocked_until_ns[to],
                  max_ns(a->pair_blocked_until_ns[daemon][to], sim->daemons[daemon].blocked_until_ns[to]));
}

static uint64_t blocked_until_ns(const struct sim *sim, const struct sim_connection *c, enum sim_end to)
{
    return network_blocked_until_ns(sim, c->agent, c->daemon, to);
}

static bool is_blocked(const struct sim *sim, const struct sim_connection *c, enum sim_end to)
{
    return sim->now_ns < blocked_until_ns(sim, c, to);
}

/* ---- sending ---- */

static struct sim_message *message_new(enum sim_message_kind kind, const void *data, size_t size)
{
    struct sim_message *m = sim_allocate(sizeof(*m) + size);

    m->kind = kind;
    m->size = size;
    if (size > 0)
        memcpy(m->data, data, size);
    return m;
}

static void enqueue(struct sim *sim, unsigned connection, enum sim_end to, struct sim_message *m)
{
    struct sim_connection *c = connection_at(sim, connection);

    m->sent_ns = sim->now_ns;
    m->at_ns = max_ns(c->last_ns[to], sim->now_ns + latency(sim));
    c->last_ns[to] = m->at_ns;
    if (c->last[to])
        c->last[to]->next = m;
    else
        c->first[to] = m;
    c->last[to] = m;
    if (!c->pumping[to]) {
        c->pumping[to] = true;
        schedule_add(&sim->schedule, m->at_ns, SIM_PUMP, connection, to);
    }
}

/* What the message is on the wire. */
static void encode_message(struct buf *out, enum sim_message_kind kind, const void *data, size_t size)
{
    int r = 0;

    if (kind == MESSAGE_HELLO)
        r = frame_put_opening(out) || session_json_put_hello(out, data);
    else if (kind == MESSAGE_REPORT)
        r = session_json_put_report(out, data);
    else if (kind == MESSAGE_VIEW)
        r = session_json_put_view(out, data);
    else if (kind == MESSAGE_ALIVE)
        r = frame_put_alive(out);
    else if (kind == MESSAGE_RENEW)
        r = session_json_put_renew(out, *(const uint32_t *)data);
    else if (kind == MESSAGE_RENEWED)
        r = session_json_put_renewed(out, *(const uint32_t *)data);
    else
        r = buf_append(out, data, size);
    if (r != 0)
        abort();
}

static void send_bytes(struct sim *sim, unsigned connection, enum sim_end to, const uint8_t *data, size_t n)
{
    while (n > 0) {
        size_t slice = random_percent(&sim->random, 30) ? random_between(&sim->random, 1, n) : n;

        enqueue(sim, connection, to, message_new(MESSAGE_BYTES, data, slice));
        data += slice;
        n -= slice;
    }
}

void network_send(struct sim *sim, unsigned connection, enum sim_end to, enum sim_message_kind kind,
                  const void *data, size_t size)
{
    struct sim_connection *c = connection_at(sim, connection);

    if (!c->open[!to])
        return;
    if (sim->scenario.codec && kind != MESSAGE_GREETING && kind != MESSAGE_FIN) {
        struct buf bytes = {0};

        encode_message(&bytes, kind, data, size);
        send_bytes(sim, connection, to, buf_bytes(&bytes), buf_size(&bytes));
        buf_finish(&bytes);
        return;
    }
    enqueue(sim, connection, to, message_new(kind, data, size));
}

/* ---- the ends ---- */

/* Established later_ns from now, if nothing is in the way. */
static struct sim_connection *sim_dial(struct sim *sim, unsigned agent, uint64_t later_ns)
{
    struct sim_agent *a = &sim->agents[agent];
    struct sim_connection *c = sim_allocate(sizeof(*c));
    unsigned id = (unsigned)sim->n_connections;
    uint64_t rtt_ns = later_ns + latency(sim) + latency(sim);

    if (sim->n_connections == sim->connections_capacity) {
        sim->connections_capacity = sim->connections_capacity ? sim->connections_capacity * 2 : 256;
        sim->connections = realloc(sim->connections, sim->connections_capacity * sizeof(*sim->connections));
        if (!sim->connections)
            abort();
    }
    sim->connections[sim->n_connections++] = c;
    c->number = id;
    c->agent = agent;
    c->daemon = a->daemon;
    c->agent_life = a->life;
    c->open[SIM_AGENT_END] = true;
    rounds_conn_init(&c->session);
    if (is_blocked(sim, c, SIM_DAEMON_END) || is_blocked(sim, c, SIM_AGENT_END))
        return c; /* the agent will not wait for the kernel's second try */
    schedule_add(&sim->schedule, sim->now_ns + rtt_ns,
                 sim->daemons[c->daemon].alive ? SIM_CONNECTED : SIM_REFUSED, id, 0);
    return c;
}

/* Where a daemon that does not lead has sent the agent. */
static bool parse_redirect(const struct sim *sim, const struct sim_agent *a, unsigned *ret)
{
    unsigned last;

    if (sscanf(a->session.redirect, "10.9.9.%u:29400", &last) != 1 || last < 9 ||
        last - 9 >= sim->scenario.n_daemons)
        return false;
    *ret = last - 9;
    return true;
}

/* The next endpoint of the list that answers; those that do not cost time. Returns how much. */
static uint64_t choose_endpoint(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    unsigned n = sim->scenario.n_daemons, first = a->n_dials++ % n;
    uint64_t late_ns = 0;

    for (unsigned i = 0; i < n; i++) {
        a->daemon = (first + i) % n;
        if (sim->now_ns < network_blocked_until_ns(sim, agent, a->daemon, SIM_AGENT_END) ||
            sim->now_ns < network_blocked_until_ns(sim, agent, a->daemon, SIM_DAEMON_END))
            late_ns += NEXT_ADDRESS_MS * SIM_MS;
        else if (!sim->daemons[a->daemon].alive)
            late_ns += latency(sim);
        else
            return late_ns;
    }
    return 0;
}

void network_dial(struct sim *sim, unsigned agent)
{
    struct sim_agent *a = &sim->agents[agent];
    uint64_t late_ns = 0;

    if (sim->scenario.n_daemons > 1 && !parse_redirect(sim, a, &a->daemon))
        late_ns = choose_endpoint(sim, agent);
    a->connection = sim_dial(sim, agent, late_ns)->number;
}

void network_dial_death_notice(struct sim *sim, unsigned agent, const struct session_hello *hello,
                               uint64_t delay_ns)
{
    struct sim_connection *c = sim_dial(sim, agent, delay_ns);

    c->death_notice = sim_allocate(sizeof(*hello));
    *c->death_notice = *hello;
}

void network_send_death_notice(struct sim *sim, unsigned connection)
{
    struct sim_connection *c = connection_at(sim, connection);

    network_send(sim, connection, SIM_DAEMON_END, MESSAGE_GREETING, NULL, 0);
    network_send(sim, connection, SIM_DAEMON_END, MESSAGE_HELLO, c->death_notice, sizeof(*c->death_notice));
    network_close(sim, connection, SIM_AGENT_END);
}

void network_close(struct sim *sim, unsigned connection, enum sim_end end)
{
    struct sim_connection *c = connection_at(sim, connection);

    if (!c->open[end])
        return;
    network_send(sim, connection, !end, MESSAGE_FIN, NULL, 0);
    c->open[end] = false;
}

void network_vanish(struct sim *sim, unsigned connection, enum sim_end end)
{
    struct sim_connection *c = connection_at(sim, connection);

    c->open[end] = false;
    c->vanished[end] = true;
}

void network_break(struct sim *sim, unsigned connection, enum sim_end end)
{
    struct sim_connection *c = connection_at(sim, connection);

    if (!c->open[end])
        return;
    c->open[end] = false;
    if (end == SIM_DAEMON_END)
        daemon_lost(sim, connection, false);
    else
        agent_lost(sim, connection, "timed out");
}

/* ---- arriving ---- */

/* Until when the one who would receive it does not run. */
static uint64_t paused_until_ns(const struct sim *sim, const struct sim_connection *c, enum sim_end to)
{
    return to == SIM_DAEMON_END ? sim->daemons[c->daemon].paused_until_ns
                                : sim->agents[c->agent].paused_until_ns;
}

static void give_up_later(struct sim *sim, unsigned connection, enum sim_end end, uint64_t at_ns)
{
    struct sim_connection *c = connection_at(sim, connection);

    if (c->broken)
        return;
    c->broken = true;
    schedule_add(&sim->schedule, max_ns(at_ns, sim->now_ns), SIM_BREAK, connection, end);
}

static void reset(struct sim *sim, unsigned connection, enum sim_end from)
{
    struct sim_connection *c = connection_at(sim, connection);

    if (c->open[!from])
        enqueue(sim, connection, !from, message_new(MESSAGE_FIN, "reset", 1));
}

static void deliver(struct sim *sim, unsigned connection, enum sim_end to, const struct sim_message *m)
{
    struct sim_connection *c = connection_at(sim, connection);

    if (!c->open[to]) {
        if (m->kind != MESSAGE_FIN)
            reset(sim, connection, to);
        return;
    }
    if (blocked_until_ns(sim, c, (enum sim_end) !to) > sim->now_ns + USER_TIMEOUT_MS * SIM_MS)
        give_up_later(sim, connection, !to, m->sent_ns + USER_TIMEOUT_MS * SIM_MS); /* no acknowledgement */
    if (m->kind == MESSAGE_FIN)
        c->open[to] = false;
    if (to == SIM_DAEMON_END && m->kind != MESSAGE_FIN && !c->death_notice)
        check_received(sim, c->agent, c->agent_life);
    if (to == SIM_DAEMON_END)
        m->kind == MESSAGE_FIN ? daemon_lost(sim, connection, m->size == 0)
                               : daemon_receive(sim, connection, m);
    else
        m->kind == MESSAGE_FIN ? agent_lost(sim, connection, "closed by the peer")
                               : agent_receive(sim, connection, m);
}

static void drop_all(struct sim_connection *c, enum sim_end to)
{
    while (c->first[to]) {
        struct sim_message *m = c->first[to];

        c->first[to] = m->next;
        free(m);
    }
    c->last[to] = NULL;
    c->pumping[to] = false;
}

void network_pump(struct sim *sim, unsigned connection, enum sim_end to)
{
    struct sim_connection *c = connection_at(sim, connection);
    struct sim_message *m = c->first[to];
    uint64_t again_ns = m->at_ns;

    m->stuck = m->stuck || is_blocked(sim, c, to);
    if (m->stuck && c->vanished[!to]) {
        drop_all(c, to); /* what follows cannot be read without it */
        return;
    }
    if (is_blocked(sim, c, to)) {
        uint64_t until_ns = blocked_until_ns(sim, c, to);

        if (m->sent_ns + USER_TIMEOUT_MS * SIM_MS < until_ns && random_percent(&sim->random, 80))
            give_up_later(sim, connection, !to, m->sent_ns + USER_TIMEOUT_MS * SIM_MS);
        again_ns = until_ns + random_between(&sim->random, 0, 200 * SIM_MS);
    } else if (sim->now_ns < paused_until_ns(sim, c, to) && c->open[to]) {
        again_ns = paused_until_ns(sim, c, to);
    }
    if (again_ns > sim->now_ns) {
        schedule_add(&sim->schedule, again_ns, SIM_PUMP, connection, to);
        return;
    }
    c->first[to] = m->next;
    if (!m->next)
        c->last[to] = NULL;
    c->pumping[to] = m->next != NULL;
    if (m->next)
        schedule_add(&sim->schedule, max_ns(m->next->at_ns, sim->now_ns), SIM_PUMP, connection, to);
    deliver(sim, connection, to, m);
    free(m);
}

/* What is on the way may have come and wait for a packet that was lost. */
uint64_t network_slack_ns(struct sim *sim, unsigned connection, enum sim_end at)
{
    const struct sim_connection *c = connection_at(sim, connection);
    bool waits = c->first[at] && !c->first[at]->stuck && !is_blocked(sim, c, at);

    return waits && random_percent(&sim->random, 50) ? UINT64_MAX : 8 * sim->scenario.latency_max_ns;
}

void network_finish(struct sim *sim)
{
    for (size_t i = 0; i < sim->n_connections; i++) {
        struct sim_connection *c = sim->connections[i];

        for (int to = 0; to < 2; to++) {
            drop_all(c, (enum sim_end)to);
            buf_finish(&c->in[to]);
        }
        buf_finish(&c->held);
        free(c->death_notice);
        free(c);
    }
    free(sim->connections);
}
