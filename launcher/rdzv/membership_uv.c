/*
 * Happy path: the name of the endpoint is resolved; on a free port of an address of the own machine the rendezvous is served here; the session connects, here or elsewhere, and reports the node ready, with the port of an empty worker store; a rank assignment comes; and so on until the job result.
 *
 * Ways it fails: the name does not resolve (tried again until the join timeout: a name may be published late), and the ends in session.h: unreachable, another kind of server, another version, refused.
 */

#include "launcher/rdzv/membership_uv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "launcher/host/local_address_os.h"
#include "launcher/host/proc_info_os.h"
#include "launcher/cli/job.h"
#include "launcher/supervise/death_notice_sock.h"
#include "launcher/rdzv/job_keys_os.h"
#include "launcher/rdzv/key_agreement_uv.h"
#include "launcher/rdzv/key_service_uv.h"
#include "launcher/rdzv/resolver_uv.h"
#include "launcher/rdzv/probe_uv.h"
#include "launcher/util/log_os.h"
#include "launcher/rdzv/node_store_uv.h"
#include "launcher/rdzv/waiting_line.h"
#include "launcher/report/job_result.h"
#include "launcher/rdzv/worker_store_uv.h"
#include "proto/address.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/store/metrics_text.h"
#include "rendezvous/daemon/compose_uv.h"
#include "base/random_os.h"
#include "base/time.h"

enum {
    RESOLVER_CHECK_MS = 500,
    RESOLVER_PATIENCE_MS = 2000, /* before a silent resolver is reported */
    RESOLVER_LOG_MS = 10000,
    QUIET_MS = 900, /* of waiting, before the count of nodes is printed */
    LINGER_MS = 10000,
    DRAIN_MS = 1000,
    ENDPOINT_SIZE = 300,
};

struct membership {
    struct membership_host host;
    struct session_uv *session;
    struct server *rendezvous;       /* hosted here, or NULL */
    struct key_service *key_service; /* gives agents the secret; only where the rendezvous is hosted */
    struct key_agreement *agreement; /* asks there for the secret; before the session */
    struct server *store;            /* of the next generation */
    struct death_notice death_notice;
    struct probe *proof;           /* proves the key to the same store */
    struct node_store *node_store; /* of the workers here; forwards to the rendezvous */
    uint16_t node_store_port;
    uint32_t key_space; /* of node_store */
    uint64_t instance;
    struct probe *probe; /* of the store of the present generation, on another node */
    char probed[ENDPOINT_SIZE];
    struct session_cause stop_cause;     /* why the last generation ended; kind NONE: printed */
    struct resolver *resolver;           /* of the endpoint's name */
    struct resolver_addresses addresses; /* of the endpoint, as dialled here */
    uv_timer_t timer;                    /* begin, check the resolution, or linger */
    char endpoint[ENDPOINT_SIZE];
    uint64_t began_ms, trouble_ms, waiting_ms;
    time_t ended_s;
    struct job_endpoint
        endpoints[JOB_ENDPOINTS_MAX]; /* of the job, but the first endpoint as dialled by the session */
    uint16_t store_port;              /* while store is not NULL */
    int store_port_fd; /* holds the port, while the store may have to listen on further addresses; -1: not held */
    struct waiting_line waiting;
    bool is_loopback;                 /* the endpoint leads each machine to itself */
    char unfit[SESSION_UNFIT_SIZE];   /* the health check failed, and the session does not know yet */
    char left_out[SESSION_TEXT_SIZE]; /* unfit nodes, as printed */
    bool is_ready, leaving, closing, timer_closed;
};

static void begin_session(struct membership *n);

/* ---- end ---- */

static void report_if_closed(struct membership *n)
{
    if (n->timer_closed && !n->rendezvous)
        n->host.on_closed(n->host.data);
}

static void on_membership_timer_closed(uv_handle_t *handle)
{
    struct membership *n = handle->data;

    n->timer_closed = true;
    report_if_closed(n);
}

static void on_rendezvous_stopped(void *data)
{
    struct membership *n = data;

    n->rendezvous = NULL;
    key_service_stop(steal_ptr(n->key_service));
    report_if_closed(n);
}

/* The last step: ends the wait for other nodes. */
static void close_rendezvous(struct membership *n)
{
    if (uv_is_closing((uv_handle_t *)&n->timer))
        return;
    if (n->rendezvous)
        server_drain(n->rendezvous, DRAIN_MS, on_rendezvous_stopped, n);
    uv_close((uv_handle_t *)&n->timer, on_membership_timer_closed);
}

static void on_linger_end(uv_timer_t *timer)
{
    struct membership *n = timer->data;

    size_t n_nodes = server_n_nodes(n->rendezvous);
    log_line("%zu node%s not asked how the job ended; the rendezvous does not wait any longer", n_nodes,
             n_nodes == 1 ? " has" : "s have");
    close_rendezvous(n);
}

static void stop_probe(struct membership *n)
{
    probe_stop(steal_ptr(n->probe));
    probe_stop(steal_ptr(n->proof));
}

static void on_all_nodes_left(void *data)
{
    struct membership *n = data;

    if (n->closing)
        close_rendezvous(n);
}

void membership_hurry(struct membership *n)
{
    close_rendezvous(n);
}

void membership_report(struct membership *n, struct session_event event)
{
    if (n->session)
        session_uv_step(n->session, event);
}

void membership_destroy(struct membership *n)
{
    if (!n || n->closing)
        return;
    n->closing = true;
    membership_report(n, (struct session_event){.kind = SESSION_EVENT_GROUP_GONE});
    session_uv_destroy(steal_ptr(n->session));
    server_stop(steal_ptr(n->store), NULL, NULL);
    close_fd(&n->store_port_fd);
    resolver_stop(steal_ptr(n->resolver));
    key_agreement_stop(steal_ptr(n->agreement));
    stop_probe(n);
    node_store_stop(steal_ptr(n->node_store));
    if (!n->rendezvous || server_n_nodes(n->rendezvous) == 0)
        close_rendezvous(n);
    else
        (void)uv_timer_start(&n->timer, on_linger_end, LINGER_MS, 0); /* fails only without a callback */
}

static void report_end(struct membership *n, int exit_code, const struct session_cause *cause)
{
    n->host.on_end(n->host.data, exit_code, cause);
}

/* ---- actions of the session ---- */

static void print_waiting(struct membership *n, const struct waiting_facts *facts)
{
    char line[WAITING_TEXT_SIZE];

    if (n->host.job->output_fd)
        return; /* the front of the job knows which hosts are missing, and the endpoint is a way to the front */
    while (waiting_hint(&n->waiting, facts, line))
        log_line("%s", line);
    if (waiting_next(&n->waiting, facts, uv_now(n->host.loop), log_has_terminal(), line))
        log_status(line);
}

/* Nodes left out, once for each change. */
static void print_unfit(struct membership *n, const struct session_view *view)
{
    if (strcmp(view->unfit, n->left_out) == 0)
        return;
    text_copy(n->left_out, sizeof(n->left_out), view->unfit);
    if (view->unfit[0])
        log_line("left out: %s", view->unfit);
}

static void print_progress(struct membership *n, const struct session_view *view)
{
    struct waiting_facts facts = {.job = n->host.job->run_id_text,
                                  .endpoint = n->endpoint,
                                  .n_ready = view->n_ready,
                                  .min_nodes = view->min_nodes,
                                  .max_nodes = view->max_nodes,
                                  .n_missing = view->n_missing,
                                  .more = &view->waiting,
                                  .standby = view->standby,
                                  .is_loopback = n->is_loopback};

    if (uv_now(n->host.loop) < n->waiting_ms + QUIET_MS)
        return;
    if (n->stop_cause.kind != SESSION_CAUSE_NONE) { /* or printed as the cause of the next generation */
        char why[SESSION_TEXT_SIZE + 256];
        session_cause_describe(&n->stop_cause, why, sizeof(why));
        log_line("%s; waiting for enough nodes to go on", why);
        n->stop_cause.kind = SESSION_CAUSE_NONE;
    }
    print_unfit(n, view);
    memcpy(facts.missing, view->missing, sizeof(facts.missing));
    print_waiting(n, &facts);
}

static void format_host_port(char *to, const char *host, unsigned port)
{
    (void)snprintf(to, ENDPOINT_SIZE, strchr(host, ':') ? "[%.256s]:%u" : "%.256s:%u", host,
                   port); /* for messages */
}

/* As many as fit. */
static void format_endpoints(char to[ENDPOINT_SIZE], const struct job *job)
{
    char one[ENDPOINT_SIZE];

    for (size_t i = 0, n = 0; i < job->n_endpoints; i++, n = strlen(to)) {
        format_host_port(one, job->endpoints[i].host, job->endpoints[i].port);
        if (n + strlen(one) + 2 < ENDPOINT_SIZE)
            (void)snprintf(to + n, ENDPOINT_SIZE - n, "%s%s", i > 0 ? "," : "", one);
    }
}

/* For sentences. The port of a far end means nothing to the user. */
static const char *shown_endpoint(const struct membership *n)
{
    return job_has_front_rendezvous(n->host.job) ? "the crun that started this job" : n->endpoint;
}

static void on_store_unreachable(void *data, const char *why)
{
    struct membership *n = data;

    stop_probe(n);
    log_line(
        "the worker store of this generation cannot be reached from this node at %s (%s), so its workers wait "
        "without result; that address is the --local-addr of node 0, or else the address from which node 0 connected "
        "to the rendezvous: start node 0 with --local-addr=ADDRESS, one at which all nodes reach it, or the job with the network of "
        "such addresses (--local-addr=10.1.0.0/16), and look for a firewall between",
        n->probed, why);
}

static void on_proof_failed(void *data, const char *why)
{
    struct membership *n = data;

    probe_stop(steal_ptr(n->proof));
    log_line(
        "the worker store of this generation at %s does not accept this node (%s), so its workers are refused there; "
        "look for a firewall between, and give node 0 a --local-addr at which all nodes reach it, or the job the network of such "
        "addresses (--local-addr=10.1.0.0/16)",
        n->probed, why);
}

/*
 * Workers wait silently for minutes when they cannot reach their store, and the store of a job with a secret accepts workers only from where an agent has proved the key. Without a probe the time-out of the workers reports the failure.
 */
static void probe_store(struct membership *n, const struct rank_assignment *assignment)
{
    struct probe_config config = {.loop = n->host.loop,
                                  .host = assignment->master_addr,
                                  .port = assignment->master_port,
                                  .on_failed = on_store_unreachable,
                                  .data = n};

    format_host_port(n->probed, assignment->master_addr, assignment->master_port);
    if (assignment->group_rank != 0)
        (void)probe_start(&n->probe, &config);
    if (!n->host.keys)
        return;
    config.tls = n->host.keys->store;
    config.on_failed = on_proof_failed;
    int r = probe_start(&n->proof, &config);
    if (r < 0)
        log_line("cannot prove this node's key to the worker store at %s: %s", n->probed, strerror(-r));
}

static bool uses_rendezvous_keys(const struct membership *n)
{
    return n->host.job->local_store && n->host.keys;
}

static void on_node_store_failed(void *data, const char *why)
{
    struct membership *n = data;

    log_line(
        "the keys of this node's workers, which the rendezvous at %s keeps, are lost (%s): their connections to the worker "
        "store are closed",
        shown_endpoint(n), why);
}

static bool find_rendezvous(void *data, struct resolver_addresses *ret)
{
    const struct membership *n = data;

    return session_uv_peer(n->session, ret);
}

static int open_node_store(struct membership *n, const struct session_view *view)
{
    struct relay_space space = {.instance = view->instance, .key_space = view->place.key_space};
    struct resolver_addresses rendezvous;
    const struct node_store_config config = {.loop = n->host.loop,
                                             .rendezvous = &rendezvous,
                                             .space = &space,
                                             .tls = n->host.keys->relay,
                                             .security = n->host.job->security,
                                             .find = find_rendezvous,
                                             .on_failed = on_node_store_failed,
                                             .data = n};

    text_copy(space.job, sizeof(space.job), n->host.job->run_id_text);
    if (!session_uv_peer(n->session, &rendezvous))
        return -ENOTCONN;
    return node_store_start(&n->node_store, &config, &n->node_store_port);
}

/* --worker-store=local: what workers of this node get. 0; -errno: a sentence was printed. */
static int start_node_store(struct membership *n, const struct session_view *view,
                            struct rank_assignment *assignment)
{
    int r = 0;

    if (!uses_rendezvous_keys(n))
        return 0;
    if (assignment->key_space == 0) {
        log_line(
            "--worker-store=local: the rendezvous at %s keeps no keys of workers: it is another version; leave the option "
            "and --seal out, or start that version",
            n->endpoint);
        return -EPROTONOSUPPORT;
    }
    /* Remaining workers keep the store of the first generation, and so does the node. */
    if (n->node_store && (n->key_space != assignment->key_space || n->instance != view->instance)) {
        node_store_stop(steal_ptr(n->node_store));
    }
    n->key_space = assignment->key_space;
    n->instance = view->instance;
    if (!n->node_store)
        r = open_node_store(n, view);
    if (r < 0) {
        n->node_store = NULL;
        log_line("cannot open the worker store of this node: %s", strerror(-r));
        return r;
    }
    text_copy(assignment->master_host, sizeof(assignment->master_host), assignment->master_addr);
    if (local_address_towards(assignment->master_host, assignment->own_host, sizeof(assignment->own_host)) <
        0)
        assignment->own_host[0] = '\0'; /* programs in need of the address report the lack */
    text_copy(assignment->master_addr, sizeof(assignment->master_addr), "127.0.0.1");
    assignment->master_port = n->node_store_port;
    return 0;
}

/* The offered store, if the generation uses the offer. False: the store cannot be reached; a sentence was printed. */
static bool take_store(struct membership *n, const struct rank_assignment *place, struct server **ret)
{
    int r = 0;

    *ret = steal_ptr(n->store);
    if (*ret && (place->group_rank != 0 || place->master_port != n->store_port))
        server_stop(steal_ptr(*ret), NULL, NULL);
    if (*ret)
        r = worker_store_listen_for(*ret, place->master_addr, place->master_port);
    close_fd(&n->store_port_fd);
    if (r == 0)
        return true;
    log_line("the worker store cannot listen at %s port %u: %s", place->master_addr, place->master_port,
             strerror(-r));
    server_stop(*ret, NULL, NULL);
    return false;
}

static void start_generation_here(struct membership *n, const struct session_view *view)
{
    struct server *store;
    char why[SESSION_TEXT_SIZE + 256], used[64] = "";

    n->is_ready = false;
    log_status("");
    print_unfit(n, view);
    n->stop_cause.kind = SESSION_CAUSE_NONE;
    if (view->generation > 0 && view->cause.kind != SESSION_CAUSE_NONE) {
        session_cause_describe(&view->cause, why, sizeof(why));
        if (!n->host.job->params.foreign) /* a foreign agent has a budget of its own */
            (void)snprintf(used, sizeof(used), " (%u/%u restarts used)", view->restarts,
                           n->host.job->params.max_restarts); /* fits */
        log_line("%s; goes on as generation %lld with %u node%s%s", why, (long long)view->generation,
                 view->place.group_world_size, view->place.group_world_size == 1 ? "" : "s", used);
    }
    if (!take_store(n, &view->place, &store)) {
        report_end(n, 1, NULL);
        return;
    }
    n->host.on_cause(n->host.data, &view->cause);
    stop_probe(n);
    if (!uses_rendezvous_keys(n))
        probe_store(n, &view->place);
    struct rank_assignment place = view->place;
    place.instance = view->instance;
    if (start_node_store(n, view, &place) < 0) {
        server_stop(store, NULL, NULL);
        report_end(n, 1, NULL);
        return;
    }
    n->host.on_start(n->host.data, (uint32_t)view->generation, (int)view->restarts, &place, store);
}

static struct job_result job_result_of(const struct membership *n, const struct session *s,
                                       const char *time_text)
{
    return (struct job_result){.kind = s->verdict,
                               .cause = &s->cause,
                               .title = n->host.job->program_name,
                               .time_text = time_text,
                               .restarts = s->restarts,
                               .max_restarts = n->host.job->params.max_restarts};
}

static void on_session_end(struct membership *n)
{
    const struct session *s = session_uv_machine(n->session);

    if (s->end != SESSION_END_VERDICT) {
        report_end(n, 1, NULL);
        return;
    }
    const struct job_result result = job_result_of(n, s, "");
    n->ended_s = time(NULL);
    n->host.on_cause(n->host.data, &s->cause);
    report_end(n, job_result_code(&result, n->host.job->exit_code_of_worker), &s->cause);
}

const char *membership_end_text(const struct membership *n)
{
    const struct session *s = n->session ? session_uv_machine(n->session) : NULL;

    return s && s->end != SESSION_END_VERDICT ? s->text : NULL;
}

int membership_stop_signal(const struct membership *n)
{
    return n->session ? (int)session_uv_machine(n->session)->stop_signal : 0;
}

void membership_print_end(struct membership *n)
{
    const struct session *s = n->session ? session_uv_machine(n->session) : NULL;
    char time_text[32] = "";
    struct tm local;

    if (!s || s->end == SESSION_END_NONE)
        return;
    if (s->end != SESSION_END_VERDICT) {
        log_line("%s", s->text);
        return;
    }
    if (localtime_r(&n->ended_s, &local))
        (void)strftime(time_text, sizeof(time_text), "%Y-%m-%d_%H:%M:%S", &local); /* fits */
    const struct job_result result = job_result_of(n, s, time_text);
    _cleanup_free_ char *text = job_result_compose(&result);
    log_lines(text ? text : "crun: the job has ended, and there is no memory to report how\n");
}

static void stop_here(struct membership *n, void (*stop)(void *data, const struct session_cause *cause))
{
    stop_probe(n);
    n->stop_cause = session_uv_machine(n->session)->cause;
    n->host.on_cause(n->host.data, &n->stop_cause);
    stop(n->host.data, &n->stop_cause);
}

static void on_session_action(void *data, enum session_action action, const struct session_view *view)
{
    struct membership *n = data;

    switch (action) {
    case SESSION_DO_START:
        start_generation_here(n, view);
        break;
    case SESSION_DO_STOP:
        stop_here(n, n->host.on_stop);
        break;
    case SESSION_DO_FENCE:
        stop_here(n, n->host.on_fence);
        break;
    case SESSION_DO_FENCED:
        stop_here(n, n->host.on_fenced);
        break;
    case SESSION_DO_DRAIN:
        n->host.on_drain(n->host.data);
        break;
    case SESSION_DO_QUIET:
        if (n->host.on_quiet)
            n->host.on_quiet(n->host.data);
        break;
    case SESSION_DO_PROGRESS:
        print_progress(n, view);
        break;
    case SESSION_DO_CHECK:
        print_unfit(n, view);
        n->host.on_check(n->host.data);
        break;
    case SESSION_DO_LOG:
        log_line("%s", session_uv_machine(n->session)->text);
        break;
    case SESSION_DO_END:
        log_status("");
        stop_probe(n);
        on_session_end(n);
        break;
    default:
        break;
    }
}

/* ---- state of the workers of this node ---- */

/* The address of the node towards the rendezvous. False: not known before the session. */
static bool find_own_address(const struct membership *n, char ret[SESSION_ADDR_SIZE])
{
    char rendezvous[INET6_ADDRSTRLEN];

    return n->addresses.n > 0 && address_format(&n->addresses.items[0].any, rendezvous, sizeof(rendezvous)) &&
           local_address_towards(rendezvous, ret, SESSION_ADDR_SIZE) == 0;
}

static bool is_of_kind(const char *host, bool (*is_kind)(const struct sockaddr *))
{
    struct resolver_addresses address;

    return resolver_numeric(host, 0, &address) && is_kind(&address.items[0].any);
}

/* A fenced store listens on the job's interface alone. The interface is a guess here: the rendezvous chooses MASTER_ADDR, and START
 * adds a listener there. --local-addr as a name may be any address for other nodes. Behind an address translated to this machine
 * stands the own address towards the rendezvous, unless the rendezvous is here, too. An open store listens on every interface, as the
 * store of PyTorch does, unless the user names an address of the own machine. */
static void choose_interface(const struct membership *n, char host[SESSION_ADDR_SIZE],
                             struct worker_store_options *options)
{
    const char *given = n->host.job->local_addr;
    bool is_given_own = given && is_of_kind(given, local_address_is_own);

    if (!is_given_own && !n->host.keys)
        return;
    bool is_known = !is_given_own && find_own_address(n, host);
    bool is_loopback = is_known && is_of_kind(host, local_address_is_loopback);
    if (given && !is_given_own && (!address_is_numeric(given) || !is_known || is_loopback))
        return;
    options->is_narrow = true;
    if (is_given_own)
        options->host = given;
    else if (is_known)
        options->host = is_loopback ? "localhost" : host;
}

/* The port is held on every address: START may bring another address to listen on. */
static int open_store(struct membership *n)
{
    struct worker_store_options options = {.security = n->host.job->security, .keys = n->host.keys};
    char host[SESSION_ADDR_SIZE];
    int r = 0;

    close_fd(&n->store_port_fd);
    choose_interface(n, host, &options);
    if (options.is_narrow)
        r = worker_store_hold(&n->store_port_fd, &options.port);
    if (r == 0)
        r = worker_store_open(&n->store, n->host.loop, &options, &n->store_port);
    if (r < 0)
        close_fd(&n->store_port_fd);
    return r;
}

/* Opens an empty store, before the rendezvous chooses node 0. */
static int offer_store(struct membership *n, uint16_t *ret_port)
{
    int r = n->store ? 0 : open_store(n);

    *ret_port = n->store_port;
    if (r)
        log_line("cannot open a worker store for the next generation: %s", strerror(-r));
    return r;
}

void membership_ready(struct membership *n, uint16_t kept_port, bool keeps_keys)
{
    bool needs_store = !kept_port && !uses_rendezvous_keys(n);
    uint16_t port = kept_port;

    n->is_ready = true;
    n->waiting_ms = uv_now(n->host.loop);
    waiting_begin(&n->waiting);
    if (!n->session)
        return; /* reported when there is one */
    if (!needs_store || offer_store(n, &port) == 0)
        membership_report(n, (struct session_event){
                                 .kind = SESSION_EVENT_GROUP_READY, .port = port, .keeps_keys = keeps_keys});
    else
        report_end(n, 1, NULL);
}

void membership_unfit(struct membership *n, const char *why)
{
    text_copy(n->unfit, sizeof(n->unfit), why);
    membership_report(n, (struct session_event){.kind = SESSION_EVENT_GROUP_UNFIT, .text = n->unfit});
}

const struct death_notice *membership_death_notice(struct membership *n)
{
    return n->session && session_uv_death_notice(n->session, &n->death_notice) ? &n->death_notice : NULL;
}

void membership_leave(struct membership *n, const char *why, int stop_signal)
{
    char reason[SESSION_TEXT_SIZE];

    n->leaving = true;
    log_status("");
    membership_report(
        n, (struct session_event){.kind = SESSION_EVENT_LEAVE, .text = why, .number = (uint32_t)stop_signal});
    if (!n->rendezvous)
        return;
    (void)snprintf(reason, sizeof(reason), "the node that serves the rendezvous goes away: %.300s", why);
    server_close_jobs(n->rendezvous, reason);
}

const char *membership_endpoint(const struct membership *n)
{
    return n->endpoint;
}

int membership_look(struct membership *n, struct buf *out)
{
    struct look_request request = {0};

    text_copy(request.job, sizeof(request.job), n->host.job->run_id_text);
    return n->rendezvous ? server_look(n->rendezvous, &request, out) : -ENOENT;
}

bool membership_send(struct membership *n, const struct buf *frames)
{
    if (n->session)
        session_uv_send(n->session, frames);
    return n->session;
}

void membership_write_metrics(const struct membership *n, struct metrics_text *m)
{
    const struct session *s = n->session ? session_uv_machine(n->session) : NULL;
    uint64_t now_ns = boot_ns(); /* the session's clock */

    if (n->rendezvous)
        server_write_metrics(n->rendezvous, m);
    metrics_one(m, "crun_session_silence_seconds", METRIC_GAUGE,
                "Since the last frame from the rendezvous; 0 before the first.",
                s && s->heard_ns && s->heard_ns < now_ns ? (double)(now_ns - s->heard_ns) / 1e9 : 0);
}

/* ---- beginning ---- */

static void log_for_rendezvous(void *data, const char *line)
{
    log_line("rendezvous: %s", line);
}

/* The endpoint, seen from the node. */
struct endpoint_kind {
    bool is_name;
    bool is_own;      /* the address is on an interface of this machine */
    bool is_loopback; /* each machine reaches the own host there */
};

/* Listens at the address of the endpoint. Listens on all addresses for a name (other nodes may resolve another address), for a translated address (a service, NAT), and for loopback: other machines are given another name. */
static int listen_at_endpoint(struct server *server, const struct membership *n,
                              const struct endpoint_kind *kind, uint16_t *ret_port)
{
    const struct job *job = n->host.job;

    bool has_others = kind->is_loopback && job->max_nodes > 1;

    if (!kind->is_name && kind->is_own && !has_others)
        return server_listen_tcp(server, job->endpoints[0].host, job->endpoints[0].port, ret_port);
    if (!kind->is_loopback || has_others)
        return server_listen_tcp(server, "::", job->endpoints[0].port, ret_port);
    return listen_on_loopback(server, job->endpoints[0].port, ret_port);
}

static struct server_security make_security(struct membership *n)
{
    struct job_keys *keys = n->host.keys;

    if (keys->by_munge)
        n->key_service = key_service_create(n->host.loop, keys);
    return job_keys_of_rendezvous(keys, n->key_service ? key_service_exchange(n->key_service) : NULL);
}

/* -EADDRINUSE: another process of the machine may serve already; then the node connects like others. */
static int host_rendezvous(struct membership *n, const struct endpoint_kind *kind)
{
    static char loopback[] = "127.0.0.1";
    const struct job *job = n->host.job;
    const struct server_rounds rounds = {.empty = on_all_nodes_left, .data = n};
    const struct server_security security = n->host.keys ? make_security(n) : (struct server_security){0};
    const struct server_config config = {.rounds = &rounds,
                                         .security = n->host.keys ? &security : NULL,
                                         .log = log_for_rendezvous,
                                         .stats = uses_rendezvous_keys(n) ? worker_store_measured() : NULL};
    uint16_t port = job->endpoints[0].port;

    struct server *server = NULL;
    int r = server_create(&server, n->host.loop, &config);
    if (r == 0)
        r = listen_at_endpoint(server, n, kind, &port);
    if (r) {
        key_service_stop(steal_ptr(n->key_service)); /* without a connection yet */
        server_stop(server, NULL, NULL);
        return r;
    }
    if (n->host.keys)
        n->host.keys->is_settled = true;
    n->rendezvous = server;
    n->endpoints[0].port = port;
    if (!kind->is_own) /* the address may not be reachable from behind NAT */
        n->endpoints[0].host = loopback;
    return 0;
}

static void on_agreement(void *data, bool has_secret)
{
    struct membership *n = data;

    key_agreement_stop(steal_ptr(n->agreement));
    if (!has_secret)
        report_end(n, 1, NULL);
    else if (!n->leaving)
        begin_session(n);
}

static void agree_on_secret(struct membership *n)
{
    const struct key_agreement_config config = {.loop = n->host.loop,
                                                .endpoint = n->endpoint,
                                                .addresses = &n->addresses,
                                                .timeout_ms = n->host.job->params.join_timeout_ms,
                                                .keys = n->host.keys,
                                                .on_end = on_agreement,
                                                .data = n};

    n->agreement = key_agreement_start(&config);
}

static bool needs_agreement(const struct membership *n)
{
    return n->host.keys && !n->host.keys->is_settled;
}

static void host_or_join(struct membership *n, const struct endpoint_kind *kind)
{
    const struct job *job = n->host.job;
    bool must = job->hosting == JOB_HOSTS;
    bool may = job->hosting != JOB_HOSTS_NOT && job->n_endpoints == 1;

    n->is_loopback = kind->is_loopback;

    int r = must || (may && kind->is_own) ? host_rendezvous(n, kind) : 0;
    if (r && (must || r != -EADDRINUSE)) {
        log_line("cannot serve the rendezvous at %s: %s%s", n->endpoint, strerror(-r),
                 must && r == -EADDRINUSE ? "; another program has the port" : "");
        if (must) {
            report_end(n, 1, NULL);
            return;
        }
    }
    if (needs_agreement(n))
        agree_on_secret(n);
    else
        begin_session(n);
}

/* ---- name of the endpoint ---- */

static const char names_advice[] =
    "the name has to be known on every node (/etc/hosts, the resolver in /etc/resolv.conf): correct it, or give an "
    "address in --rdzv-endpoint";

static void on_name_trouble(void *data, const char *why)
{
    struct membership *n = data;
    uint64_t now_ms = uv_now(n->host.loop), until_ms = n->began_ms + n->host.job->params.join_timeout_ms;

    if (now_ms < n->trouble_ms || until_ms <= now_ms) /* the end, which is near, has the same text */
        return;
    n->trouble_ms = now_ms + RESOLVER_LOG_MS;
    log_line("the name in --rdzv-endpoint %s cannot be looked up: %s; trying again for %llu s; %s",
             n->endpoint, why, (unsigned long long)((until_ms - now_ms + 999) / 1000), names_advice);
}

static void on_resolver_check(uv_timer_t *timer)
{
    struct membership *n = timer->data;
    uint64_t now_ms = uv_now(n->host.loop);

    if (n->leaving || now_ms < n->began_ms + n->host.job->params.join_timeout_ms) {
        if (now_ms >= n->began_ms + RESOLVER_PATIENCE_MS)
            on_name_trouble(n, resolver_why(n->resolver));
        return;
    }
    (void)uv_timer_stop(timer); /* cannot fail */
    log_line(
        "the rendezvous at %s could not be reached for %u s (the join timeout): the name cannot be looked up: %s; %s",
        n->endpoint, n->host.job->params.join_timeout_ms / 1000, resolver_why(n->resolver), names_advice);
    report_end(n, 1, NULL);
}

static struct endpoint_kind endpoint_kind_of(const struct resolver_addresses *a, bool is_name)
{
    struct endpoint_kind kind = {.is_name = is_name, .is_loopback = true};

    for (size_t i = 0; i < a->n; i++) {
        kind.is_own = kind.is_own || local_address_is_own(&a->items[i].any);
        kind.is_loopback = kind.is_loopback && local_address_is_loopback(&a->items[i].any);
    }
    return kind;
}

static void on_name_found(void *data, const struct resolver_addresses *found)
{
    struct membership *n = data;
    struct endpoint_kind kind = endpoint_kind_of(found, true);

    (void)uv_timer_stop(&n->timer); /* as above */
    resolver_stop(steal_ptr(n->resolver));
    if (n->leaving)
        return;
    n->addresses = *found;
    /* A machine's own name is often a loopback address on that machine alone (127.0.1.1). */
    kind.is_loopback = kind.is_loopback && strcmp(n->host.job->endpoints[0].host, "localhost") == 0;
    host_or_join(n, &kind);
}

static void resolve_endpoint(struct membership *n)
{
    const struct resolver_config config = {.loop = n->host.loop,
                                           .host = n->host.job->endpoints[0].host,
                                           .port = n->host.job->endpoints[0].port,
                                           .on_found = on_name_found,
                                           .on_trouble = on_name_trouble,
                                           .data = n};

    int r = resolver_start(&n->resolver, &config);
    if (r) {
        log_line("cannot look up the name in --rdzv-endpoint %s: %s", n->endpoint, strerror(-r));
        report_end(n, 1, NULL);
        return;
    }
    (void)uv_timer_start(&n->timer, on_resolver_check, RESOLVER_CHECK_MS,
                         RESOLVER_CHECK_MS); /* fails only without a callback */
}

static void on_membership_begin(uv_timer_t *timer)
{
    struct membership *n = timer->data;
    const struct job *job = n->host.job;
    bool is_numeric = resolver_numeric(job->endpoints[0].host, job->endpoints[0].port, &n->addresses);

    if (!is_numeric && job->n_endpoints > 1 && !needs_agreement(n)) {
        begin_session(n); /* looks all names up: an unknown name must not keep the others waiting */
        return;
    }
    if (!is_numeric) {
        resolve_endpoint(n);
        return;
    }
    const struct endpoint_kind kind = endpoint_kind_of(&n->addresses, false);
    host_or_join(n, &kind);
}

static void begin_session(struct membership *n)
{
    const struct job *job = n->host.job;
    const struct session_uv_host host = {.loop = n->host.loop,
                                         .endpoints = n->endpoints,
                                         .n_endpoints = job->n_endpoints,
                                         .addresses = &n->addresses,
                                         .tls = n->host.keys ? n->host.keys->client : NULL,
                                         .on_action = on_session_action,
                                         .listener = n->host.listener,
                                         .data = n};
    struct session_config config = {.endpoint = shown_endpoint(n),
                                    .has_more_endpoints = job->n_endpoints > 1,
                                    .cutoff_ns = job->cutoff_ms * UINT64_C(1000000),
                                    .hello = session_hello_of_node(&job->params, (uint32_t)job->n_workers)};

    config.hello.node_rank = job->node_rank;
    config.hello.can_report = host.listener.report;
    text_copy(config.hello.job, sizeof(config.hello.job), job->run_id_text);
    text_copy(config.hello.role, sizeof(config.hello.role), job->role);
    text_copy(config.hello.addr, sizeof(config.hello.addr), job->local_addr ? job->local_addr : "");
    proc_info_host_name(config.hello.host, sizeof(config.hello.host));
    (void)resolver_numeric(n->endpoints[0].host, n->endpoints[0].port,
                           &n->addresses); /* a name has been resolved */
    for (size_t i = 0; i < n->addresses.n; i++)
        n->addresses.items[i].v4.sin_port =
            htons(n->endpoints[0].port); /* at the same offset in both structures */
    int r = random_fill(&config.hello.nonce, sizeof(config.hello.nonce));
    if (r) {
        log_line("cannot begin a session with the rendezvous: %s", strerror(-r));
        report_end(n, 1, NULL);
        return;
    }
    session_uv_create(&n->session, &host, &config);
    if (n->is_ready)
        membership_ready(n, 0, false);
    else if (n->unfit[0])
        membership_unfit(n, n->unfit);
}

struct membership *membership_create(const struct membership_host *host)
{
    static struct membership membership; /* a process has one job */
    struct membership *n = &membership;
    const struct job *job = host->job;

    n->host = *host;
    n->store_port_fd = -1;
    n->began_ms = uv_now(host->loop);
    memcpy(n->endpoints, job->endpoints, sizeof(n->endpoints));
    format_endpoints(n->endpoint, job);
    (void)uv_timer_init(host->loop, &n->timer); /* these two cannot fail */
    n->timer.data = n;
    (void)uv_timer_start(&n->timer, on_membership_begin, 0, 0);
    return n;
}
