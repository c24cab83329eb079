/*
 * Happy path: node 0 opens the store at the endpoint; every node connects to it, waits for the others and gets its
 * ranks; the workers run; rdzv_static_uv_leave() waits for the others once more.
 *
 * Ways it fails: the port is taken (node 0); no server answers at the endpoint, or not all nodes come in time; the server
 * is no TCPStore. After the start a lost store makes the workers fail; nothing here needs it before the end.
 */

#include "launcher/rdzv/rdzv_static_uv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "launcher/util/envp.h"
#include "launcher/cli/job.h"
#include "launcher/rdzv/tcp_client_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/rdzv/rdzv_static.h"
#include "launcher/rdzv/waiting_line.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "proto/address.h"
#include "rendezvous/server/server_uv.h"

enum {
    REDIAL_MS = 100,
    TICK_MS = 1000,
    ANSWER_MS = 4000,  /* a server that is no store is reported within 5 s */
    CONNECT_MS = 5000, /* then the next address is tried */
    LEAVE_MS = 300000,
    /* Agents of torchrun send one more request after the last one has ended; the store stays until they have closed. */
    FAREWELL_MS = 3000,
    FAREWELL_INTERVAL_MS = 20,
    STORE_DRAIN_MS = 1000,
};

struct rdzv_static_uv {
    struct rdzv_static_host host;
    struct server *store; /* node 0 */
    struct tcp_client *client;
    struct rdzv_static node;
    const char *dial_host;
    uint16_t dial_port;
    uv_timer_t redial, tick, deadline;
    unsigned n_dials;
    uint64_t dialed_ms, connected_ms, farewell_until_ms;
    struct waiting_line waiting;
    bool is_twin_reported;
    bool assigned, finished;
    char why[160]; /* why the last attempt failed */
};

static void dial_store(struct rdzv_static_uv *s);

static void finish_static(struct rdzv_static_uv *s, void (*on_end)(void *data))
{
    if (s->finished)
        return;
    s->finished = true;
    log_status("");
    on_end(s->host.data);
}

/* ---- leaving ---- */

static void on_farewell(uv_timer_t *timer)
{
    struct rdzv_static_uv *s = timer->data;

    if (server_n_clients(s->store) <= (s->client ? 1 : 0) || uv_now(s->host.loop) >= s->farewell_until_ms)
        finish_static(s, s->host.on_departed);
}

static void on_all_departed(struct rdzv_static_uv *s)
{
    if (!s->store) {
        finish_static(s, s->host.on_departed);
        return;
    }
    (void)uv_timer_stop(&s->deadline); /* as below, cannot fail */
    s->farewell_until_ms = uv_now(s->host.loop) + FAREWELL_MS;
    (void)uv_timer_start(&s->tick, on_farewell, 0, FAREWELL_INTERVAL_MS);
}

static void on_leave_timeout(uv_timer_t *timer)
{
    struct rdzv_static_uv *s = timer->data;

    log_line("other nodes are not done %d s after this one; it does not wait for them any longer",
             LEAVE_MS / 1000);
    finish_static(s, s->host.on_departed);
}

/* ---- the conversation ---- */

static void send_requests(struct rdzv_static_uv *s)
{
    struct buf *out = &s->node.client.out;

    if (buf_size(out) == 0)
        return;
    tcp_client_send(s->client, buf_bytes(out), buf_size(out));
    buf_consume(out, buf_size(out));
}

/* The job would wait for the missing rank until the timeout. */
static void report_twin(struct rdzv_static_uv *s)
{
    const struct job *job = s->host.job;

    if (!s->node.has_twin || s->is_twin_reported)
        return;
    s->is_twin_reported = true;
    log_line(
        "another node of this job was started with --node-rank=%d, too; each node needs one of its own, 0 to %d",
        job->node_rank, job->max_nodes - 1);
}

static void print_static_progress(struct rdzv_static_uv *s)
{
    const struct job *job = s->host.job;
    struct session_waiting more = {0};
    char endpoint[320], line[WAITING_TEXT_SIZE];
    struct waiting_facts facts = {.job = job->run_id_text,
                                  .endpoint = endpoint,
                                  .n_ready = s->node.n_there,
                                  .min_nodes = (uint32_t)job->max_nodes,
                                  .max_nodes = (uint32_t)job->max_nodes,
                                  .more = &more,
                                  .is_loopback = address_is_loopback(job->master_addr)};

    if (s->node.stage != STATIC_GATHERING)
        return;
    more.left_ms = (uint32_t)uv_timer_get_due_in(&s->deadline);
    (void)snprintf(endpoint, sizeof(endpoint), "%.256s port %u", job->master_addr,
                   job->master_port); /* fits */
    while (waiting_hint(&s->waiting, &facts, line))
        log_line("%s", line);
    if (waiting_next(&s->waiting, &facts, uv_now(s->host.loop), log_has_terminal(), line))
        log_status(line);
}

static void on_ranks(struct rdzv_static_uv *s)
{
    const struct job *job = s->host.job;

    s->assigned = true;
    log_status("");
    (void)uv_timer_stop(&s->tick); /* cannot fail on timers that exist */
    (void)uv_timer_stop(&s->deadline);
    text_copy(s->node.assignment.master_addr, sizeof(s->node.assignment.master_addr), job->master_addr);
    s->node.assignment.master_port = job->master_port;
    s->host.on_assigned(s->host.data, &s->node.assignment);
}

static void report_bad_answer(struct rdzv_static_uv *s, int r)
{
    const char *what = r == STATIC_E_BAD        ? s->node.error
                       : r == CLIENT_E_PROTOCOL ? "what answers there is no TCPStore"
                                                : strerror(ENOMEM);

    if (s->assigned)
        return; /* it concerns the workers, which notice it themselves */
    log_line(
        "cannot meet the other nodes at %s port %u: %s; check --master-addr, --master-port and that all nodes "
        "have the same --rdzv-id",
        s->host.job->master_addr, s->host.job->master_port, what);
    finish_static(s, s->host.on_failed);
}

static void on_static_bytes(void *data, const uint8_t *bytes, size_t n)
{
    struct rdzv_static_uv *s = data;
    enum rdzv_static_stage before = s->node.stage;

    int r = buf_append(&s->node.client.in, bytes, n);
    if (!r)
        r = rdzv_static_receive(&s->node);
    if (r) {
        report_bad_answer(s, r);
        return;
    }
    send_requests(s);
    if (s->node.stage == STATIC_ASSIGNED && before < STATIC_ASSIGNED)
        on_ranks(s);
    else if (s->node.stage == STATIC_DEPARTED && before < STATIC_DEPARTED)
        on_all_departed(s);
}

static void begin_conversation(struct rdzv_static_uv *s)
{
    const struct job *job = s->host.job;
    const char *identical = envp_get(s->host.environment, "TORCH_ELASTIC_WORKER_IDENTICAL");
    const struct rdzv_static_config config = {.run_id = job->run_id_text,
                                              .role = job->role,
                                              .rank = (uint32_t)job->node_rank,
                                              .n_nodes = (uint32_t)job->max_nodes,
                                              .n_workers = (uint32_t)job->n_workers,
                                              .identical = identical && strcmp(identical, "1") == 0};

    bool is_counted = s->node.is_counted;
    rdzv_static_finish(&s->node);
    rdzv_static_init(&s->node, &config);
    s->node.is_counted = is_counted;
}

static void on_static_connected(void *data)
{
    struct rdzv_static_uv *s = data;

    begin_conversation(s);
    s->connected_ms = uv_now(s->host.loop);
    int r = rdzv_static_join(&s->node);
    if (r)
        report_bad_answer(s, r);
    else
        send_requests(s);
}

static void on_redial(uv_timer_t *timer)
{
    dial_store(timer->data);
}

static void on_static_lost(void *data, const char *why)
{
    struct rdzv_static_uv *s = data;

    s->client = NULL;
    if (s->node.stage == STATIC_LEAVING) { /* node 0 has ended: its store cannot report the others */
        on_all_departed(s);
        return;
    }
    if (s->assigned || s->finished)
        return;
    text_copy(s->why, sizeof(s->why), why);
    s->node.stage = STATIC_GREETING;
    (void)uv_timer_start(&s->redial, on_redial, REDIAL_MS, 0); /* fails only without a callback */
}

static void dial_store(struct rdzv_static_uv *s)
{
    const struct tcp_client_config config = {.loop = s->host.loop,
                                             .host = s->dial_host,
                                             .port = s->dial_port,
                                             .turn = s->n_dials++,
                                             .on_connected = on_static_connected,
                                             .on_bytes = on_static_bytes,
                                             .on_lost = on_static_lost,
                                             .data = s};

    s->dialed_ms = uv_now(s->host.loop);
    s->connected_ms = 0;
    int r = tcp_client_dial(&s->client, &config);
    if (r)
        on_static_lost(s, strerror(-r));
}

/* ---- time ---- */

/* A listener that never answers is no store. */
static bool is_mute(const struct rdzv_static_uv *s)
{
    return s->client && s->connected_ms && s->node.stage == STATIC_GREETING &&
           uv_now(s->host.loop) >= s->connected_ms + ANSWER_MS;
}

/* A host that is switched off, or behind a firewall that drops packets: the kernel would try for two minutes. */
static bool is_stuck(const struct rdzv_static_uv *s)
{
    return s->client && !s->connected_ms && !*tcp_client_trouble(s->client) &&
           uv_now(s->host.loop) >= s->dialed_ms + CONNECT_MS;
}

/* Why there is no conversation yet; may be "". */
static const char *connection_trouble(const struct rdzv_static_uv *s)
{
    return s->client && *tcp_client_trouble(s->client) ? tcp_client_trouble(s->client) : s->why;
}

static const char *connection_advice(const struct rdzv_static_uv *s)
{
    return s->client && *tcp_client_trouble(s->client)
               ? "; the name in --master-addr has to be known on every node (/etc/hosts, the resolver in "
                 "/etc/resolv.conf): correct it, or give an address"
               : "; check that it is running and that --master-addr and --master-port are its";
}

/* At once, after each change, and then after pauses that double. */
static void print_waiting_for_store(struct rdzv_static_uv *s)
{
    char line[WAITING_TEXT_SIZE];

    (void)snprintf(line, sizeof(line), "waiting for node 0 at %.256s port %u%s%s", s->host.job->master_addr,
                   s->host.job->master_port, *connection_trouble(s) ? ": " : "",
                   connection_trouble(s)); /* fits */
    bool is_due = waiting_is_due(&s->waiting, line, uv_now(s->host.loop), log_has_terminal());
    size_t n = strlen(line);
    (void)snprintf(line + n, sizeof(line) - n, "; %u s left",
                   (unsigned)(uv_timer_get_due_in(&s->deadline) + 999) / 1000); /* fits */
    if (is_due)
        log_status(line);
}

static void on_tick(uv_timer_t *timer)
{
    struct rdzv_static_uv *s = timer->data;

    if (is_mute(s)) {
        log_line(
            "something listens at %s port %u, but it does not answer as a TCPStore does; check --master-addr "
            "and --master-port",
            s->host.job->master_addr, s->host.job->master_port);
        finish_static(s, s->host.on_failed);
        return;
    }
    if (s->node.stage == STATIC_GREETING)
        print_waiting_for_store(s);
    report_twin(s);
    print_static_progress(s);
    if (is_stuck(s)) {
        tcp_client_close(s->client);
        on_static_lost(s, "no answer");
    }
    if (s->client && rdzv_static_count(&s->node) == 0)
        send_requests(s);
}

static void on_static_deadline(uv_timer_t *timer)
{
    struct rdzv_static_uv *s = timer->data;
    const struct job *job = s->host.job;
    unsigned timeout_s = job->static_timeout_ms / 1000;

    if (s->node.stage == STATIC_GREETING)
        log_line("node 0 could not be reached at %s port %u for %u s%s%s%s", job->master_addr,
                 job->master_port, timeout_s, *connection_trouble(s) ? ": " : "", connection_trouble(s),
                 connection_advice(s));
    else
        log_line(
            "timed out after %u s waiting for the nodes of this job: %u of %d are there; all of them need the "
            "same --nnodes, --rdzv-id and address, and a --node-rank of their own",
            timeout_s, s->node.n_there, job->max_nodes);
    finish_static(s, s->host.on_failed);
}

/* ---- life ---- */

/* At the address that workers use. Two kinds of addresses need every interface instead: loopback, since nodes on other machines
 * have another name of this one, and an address that is translated to this machine (a service, NAT) and cannot be bound. */
static int open_store(struct rdzv_static_uv *s)
{
    const struct job *job = s->host.job;
    struct worker_store_options options = {.host = address_is_loopback(job->master_addr) ? NULL
                                                                                         : job->master_addr,
                                           .port = job->master_port,
                                           .security = job->security};
    uint16_t port;

    int r = worker_store_open(&s->store, s->host.loop, &options, &port);
    if (r == -EADDRNOTAVAIL) {
        s->dial_host = "localhost";
        options.host = NULL;
        r = worker_store_open(&s->store, s->host.loop, &options, &port);
    }
    if (r)
        log_line("cannot open the store of this job at %s port %u: %s%s", job->master_addr, job->master_port,
                 strerror(-r),
                 r == -EADDRINUSE ? "; another program has it, choose another --master-port on all nodes"
                                  : "");
    return r;
}

static void init_timer(struct rdzv_static_uv *s, uv_timer_t *timer)
{
    (void)uv_timer_init(s->host.loop, timer); /* cannot fail */
    timer->data = s;
}

int rdzv_static_uv_create(struct rdzv_static_uv **ret, const struct rdzv_static_host *host)
{
    static struct rdzv_static_uv rdzv; /* a process has one job */
    struct rdzv_static_uv *s = &rdzv;

    s->host = *host;
    s->dial_host = host->job->master_addr;
    s->dial_port = host->job->master_port;
    begin_conversation(s);
    int r = host->job->node_rank == 0 ? open_store(s) : 0;
    if (r) {
        rdzv_static_finish(&s->node);
        return r;
    }
    init_timer(s, &s->redial);
    init_timer(s, &s->tick);
    init_timer(s, &s->deadline);
    /* These fail only without a callback. */
    (void)uv_timer_start(&s->redial, on_redial, 0, 0);
    (void)uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    (void)uv_timer_start(&s->deadline, on_static_deadline, host->job->static_timeout_ms, 0);
    *ret = s;
    return 0;
}

void rdzv_static_uv_leave(struct rdzv_static_uv *s)
{
    (void)uv_timer_start(&s->deadline, on_leave_timeout, LEAVE_MS, 0); /* as above */
    if (!s->client || rdzv_static_leave(&s->node) != 0) {
        on_all_departed(s);
        return;
    }
    send_requests(s);
}

void rdzv_static_uv_destroy(struct rdzv_static_uv *s)
{
    if (!s)
        return;
    s->finished = true;
    tcp_client_close(steal_ptr(s->client));
    if (s->store)
        server_drain(s->store, STORE_DRAIN_MS, NULL, NULL);
    uv_close((uv_handle_t *)&s->redial, NULL);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->deadline, NULL);
    rdzv_static_finish(&s->node);
}
