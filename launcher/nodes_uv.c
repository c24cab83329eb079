/*
 * Happy path: the endpoint's name is looked up; if the address is ours and its port is free, the rendezvous
 * is served here; the session dials it, ours or another's, and says that this node is ready, with the port
 * of an empty worker store that it would serve; a place comes; and so on until the verdict.
 *
 * Ways it fails: the name does not resolve (asked again until the join timeout: names may come late), and
 * what session.h names: unreachable, something else there, another version, refused.
 */

#include "launcher/nodes_uv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "launcher/endpoint_os.h"
#include "launcher/job.h"
#include "launcher/last_word_sock.h"
#include "launcher/say.h"
#include "launcher/session_uv.h"
#include "launcher/verdict.h"
#include "launcher/worker_store_uv.h"
#include "rendezvous/server_uv.h"

enum {
    LOOKUP_AGAIN_MS = 500,
    LOOKUP_COMPLAIN_MS = 10000,
    QUIET_MS = 900, /* of waiting, before the count of nodes is said */
    LINGER_MS = 10000,
    DRAIN_MS = 1000,
    ENDPOINT_SIZE = 300,
};

struct nodes {
    struct nodes_host host;
    struct session_uv *session;
    struct server *rendezvous; /* hosted here, or NULL */
    struct server *store;      /* of the next generation */
    struct last_word last_word;
    uv_getaddrinfo_t lookup;
    uv_timer_t timer; /* begin, look up again, or linger */
    char endpoint[ENDPOINT_SIZE];
    uint64_t began_ms, complain_ms, waiting_ms;
    time_t ended_s;
    uint16_t rendezvous_port; /* where the session goes */
    bool is_ready, looking_up, leaving, closing, timer_closed;
};

static void begin_session(struct nodes *n);

/* ------------------------------------------------------------------ end */

static void free_if_done(struct nodes *n)
{
    if (!n->timer_closed || n->rendezvous || n->looking_up)
        return;
    n->host.on_gone(n->host.data);
    free(n);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct nodes *n = handle->data;

    n->timer_closed = true;
    free_if_done(n);
}

static void on_rendezvous_stopped(void *data)
{
    struct nodes *n = data;

    n->rendezvous = NULL;
    free_if_done(n);
}

/* The last step: the rendezvous is not waited for any longer. */
static void close_rest(struct nodes *n)
{
    if (uv_is_closing((uv_handle_t *)&n->timer))
        return;
    if (n->rendezvous)
        server_drain(n->rendezvous, DRAIN_MS, on_rendezvous_stopped, n);
    uv_close((uv_handle_t *)&n->timer, on_timer_closed);
}

static void on_linger_end(uv_timer_t *timer)
{
    struct nodes *n = timer->data;

    say("%zu nodes have not asked how the job ended; the rendezvous does not wait for them any longer",
        server_n_nodes(n->rendezvous));
    close_rest(n);
}

static void on_deserted(void *data)
{
    struct nodes *n = data;

    if (n->closing)
        close_rest(n);
}

void nodes_hurry(struct nodes *n)
{
    close_rest(n);
}

void nodes_destroy(struct nodes *n)
{
    if (!n || n->closing)
        return;
    n->closing = true;
    session_uv_destroy(n->session);
    n->session = NULL;
    if (n->store)
        server_stop(n->store, NULL, NULL);
    n->store = NULL;
    if (n->looking_up)
        (void)uv_cancel((uv_req_t *)&n->lookup); /* one that runs already is waited for */
    if (!n->rendezvous || server_n_nodes(n->rendezvous) == 0)
        close_rest(n);
    else
        (void)uv_timer_start(&n->timer, on_linger_end, LINGER_MS, 0); /* fails only without a callback */
}

static void end(struct nodes *n, int exit_code, const struct session_cause *cause)
{
    n->host.on_end(n->host.data, exit_code, cause);
}

/* ------------------------------------------------------------------ the session's wishes */

static void say_progress(struct nodes *n, const struct session_view *view)
{
    char missing[128] = "";
    size_t size = 0;

    if (uv_now(n->host.loop) < n->waiting_ms + QUIET_MS)
        return;
    if (view->standby) {
        say("the job has all the nodes it can use; this one waits for a place");
        return;
    }
    for (uint32_t i = 0; i < view->n_missing && size < sizeof(missing) - 16; i++)
        size += (size_t)snprintf(missing + size, sizeof(missing) - size, "%s%u",
                                 i ? ", " : ", missing: node rank ", view->missing[i]);
    if (view->min_nodes == view->max_nodes)
        say("%u/%u nodes%s", view->n_ready, view->max_nodes, missing);
    else
        say("%u/%u nodes (at least %u)%s", view->n_ready, view->max_nodes, view->min_nodes, missing);
}

static void start(struct nodes *n, const struct session_view *view)
{
    struct server *store = n->store;
    char why[SESSION_TEXT_SIZE + 256];

    n->store = NULL;
    n->is_ready = false;
    if (view->generation > 0 && view->cause.kind != SESSION_CAUSE_NONE) {
        session_cause_describe(&view->cause, why, sizeof(why));
        say("%s; goes on as generation %lld with %u nodes (%u/%u restarts used)", why, (long long)view->generation,
            view->place.group_world_size, view->restarts, n->host.job->params.max_restarts);
    }
    if (view->place.group_rank != 0 && store) {
        server_stop(store, NULL, NULL);
        store = NULL;
    }
    n->host.on_start(n->host.data, (uint32_t)view->generation, (int)view->restarts, &view->place, store);
}

static struct verdict verdict_of(const struct nodes *n, const struct session *s, const char *time_text)
{
    return (struct verdict){.kind = s->verdict,
                            .cause = &s->cause,
                            .title = n->host.job->program_name,
                            .time_text = time_text,
                            .restarts = s->restarts,
                            .max_restarts = n->host.job->params.max_restarts};
}

static void on_session_end(struct nodes *n)
{
    const struct session *s = session_uv_machine(n->session);

    if (s->end != SESSION_END_VERDICT) {
        end(n, 1, NULL);
        return;
    }
    const struct verdict verdict = verdict_of(n, s, "");
    n->ended_s = time(NULL);
    end(n, verdict_code(&verdict, n->host.job->exit_code_of_worker), &s->cause);
}

void nodes_tell_end(struct nodes *n)
{
    const struct session *s = n->session ? session_uv_machine(n->session) : NULL;
    char time_text[32] = "";
    struct tm local;

    if (!s || s->end == SESSION_END_NONE)
        return;
    if (s->end != SESSION_END_VERDICT) {
        say("%s", s->text);
        return;
    }
    if (localtime_r(&n->ended_s, &local))
        (void)strftime(time_text, sizeof(time_text), "%Y-%m-%d_%H:%M:%S", &local); /* fits */
    const struct verdict verdict = verdict_of(n, s, time_text);
    char *text = verdict_compose(&verdict);
    say_lines(text ? text : "crun: the job has ended, and memory is too short to say how\n");
    free(text);
}

static void on_action(void *data, enum session_action action, const struct session_view *view)
{
    struct nodes *n = data;

    switch (action) {
    case SESSION_DO_START:
        start(n, view);
        break;
    case SESSION_DO_STOP:
        n->host.on_stop(n->host.data, &session_uv_machine(n->session)->cause);
        break;
    case SESSION_DO_DRAIN:
        n->host.on_drain(n->host.data);
        break;
    case SESSION_DO_PROGRESS:
        say_progress(n, view);
        break;
    case SESSION_DO_SAY:
        say("%s", session_uv_machine(n->session)->text);
        break;
    case SESSION_DO_END:
        on_session_end(n);
        break;
    default:
        break;
    }
}

/* ------------------------------------------------------------------ what became of the workers */

/* An empty store, held from now on, whoever will be node 0. */
static int offer_store(struct nodes *n, uint16_t *ret_port)
{
    int r = n->store ? 0 : worker_store_open(&n->store, n->host.loop, NULL, 0, ret_port);

    if (r)
        say("cannot open a worker store for the next generation: %s", strerror(-r));
    return r;
}

void nodes_ready(struct nodes *n)
{
    uint16_t port = 0;

    n->is_ready = true;
    n->waiting_ms = uv_now(n->host.loop);
    if (!n->session)
        return; /* said when there is one */
    if (offer_store(n, &port) == 0)
        session_uv_step(n->session, (struct session_event){.kind = SESSION_EVENT_GROUP_READY, .port = port});
    else
        end(n, 1, NULL);
}

void nodes_failed(struct nodes *n, const struct session_cause *cause, uint64_t when_ns)
{
    session_uv_step(n->session, (struct session_event){
                                    .kind = SESSION_EVENT_GROUP_FAILED, .cause = cause, .when_ns = when_ns});
}

void nodes_done(struct nodes *n)
{
    session_uv_step(n->session, (struct session_event){.kind = SESSION_EVENT_GROUP_DONE});
}

void nodes_drain(struct nodes *n)
{
    session_uv_step(n->session, (struct session_event){.kind = SESSION_EVENT_DRAIN});
}

const struct last_word *nodes_last_word(struct nodes *n)
{
    return n->session && session_uv_last_word(n->session, &n->last_word) ? &n->last_word : NULL;
}

void nodes_leave(struct nodes *n, const char *why)
{
    char reason[SESSION_TEXT_SIZE];

    n->leaving = true;
    if (n->session)
        session_uv_step(n->session, (struct session_event){.kind = SESSION_EVENT_LEAVE, .text = why});
    if (!n->rendezvous)
        return;
    (void)snprintf(reason, sizeof(reason), "the node that serves the rendezvous goes away: %.300s", why);
    server_close_jobs(n->rendezvous, reason);
}

/* ------------------------------------------------------------------ beginning */

static void say_for_rendezvous(void *data, const char *line)
{
    say("rendezvous: %s", line);
}

/* Listens at the endpoint: at its address, or everywhere if it is a name, which others may resolve to
 * another address of this machine. */
static int listen_here(struct server *server, const struct nodes *n, bool is_name, bool is_loopback,
                       uint16_t *ret_port)
{
    const struct job *job = n->host.job;

    if (!is_name)
        return server_listen_tcp(server, job->endpoint_host, job->endpoint_port, ret_port);
    if (!is_loopback)
        return server_listen_tcp(server, "::", job->endpoint_port, ret_port);
    int r = server_listen_tcp(server, "127.0.0.1", job->endpoint_port, ret_port);
    if (!r)
        (void)server_listen_tcp(server, "::1", *ret_port, ret_port); /* where there is none, nobody asks */
    return r;
}

/* Somebody else on this machine may serve it already: then this node is a guest like others. */
static int host_rendezvous(struct nodes *n, bool is_name, bool is_loopback)
{
    const struct job *job = n->host.job;
    const struct server_rounds rounds = {.deserted = on_deserted, .data = n};
    const struct server_config config = {.rounds = &rounds, .log = say_for_rendezvous};
    struct server *server;
    uint16_t port = job->endpoint_port;

    int r = server_create(&server, n->host.loop, &config);
    if (r)
        return r;
    r = listen_here(server, n, is_name, is_loopback, &port);
    if (r) {
        server_stop(server, NULL, NULL);
        return r;
    }
    n->rendezvous = server;
    n->rendezvous_port = port;
    return 0;
}

static void settle_host(struct nodes *n, bool is_own, bool is_name, bool is_loopback)
{
    const struct job *job = n->host.job;
    bool must = job->hosting == JOB_HOSTS;

    int r = must || is_own ? host_rendezvous(n, is_name, is_loopback) : 0;
    if (r && (must || r != -EADDRINUSE)) {
        say("cannot serve the rendezvous at %s: %s%s", n->endpoint, strerror(-r),
            must && r == -EADDRINUSE ? "; another program has the port" : "");
        if (must) {
            end(n, 1, NULL);
            return;
        }
    }
    begin_session(n);
}

static void look_up(struct nodes *n);

static void on_again(uv_timer_t *timer)
{
    look_up(timer->data);
}

/* The name may not be there yet. */
static void look_up_later(struct nodes *n, const char *why)
{
    uint64_t now_ms = uv_now(n->host.loop);

    if (now_ms >= n->began_ms + n->host.job->params.join_timeout_ms) {
        say("the rendezvous at %s could not be reached for %u s (the join timeout): the name cannot be looked up: "
            "%s; check --rdzv-endpoint",
            n->endpoint, n->host.job->params.join_timeout_ms / 1000, why);
        end(n, 1, NULL);
        return;
    }
    if (now_ms >= n->complain_ms) {
        say("the name in --rdzv-endpoint %s cannot be looked up: %s; trying again", n->endpoint, why);
        n->complain_ms = now_ms + LOOKUP_COMPLAIN_MS;
    }
    (void)uv_timer_start(&n->timer, on_again, LOOKUP_AGAIN_MS, 0); /* fails only without a callback */
}

static void on_looked_up(uv_getaddrinfo_t *lookup, int status, struct addrinfo *list)
{
    struct nodes *n = lookup->data;
    bool is_own = false, is_loopback = status == 0;

    n->looking_up = false;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        is_own = is_own || endpoint_is_own(a->ai_addr);
        is_loopback = is_loopback && endpoint_is_loopback(a->ai_addr);
    }
    uv_freeaddrinfo(list);
    /* A machine's own name is often a loopback address on that machine alone (127.0.1.1). */
    is_loopback = is_loopback && strcmp(n->host.job->endpoint_host, "localhost") == 0;
    if (n->closing)
        free_if_done(n);
    else if (n->leaving)
        return;
    else if (status < 0)
        look_up_later(n, uv_strerror(status));
    else
        settle_host(n, is_own, true, is_loopback);
}

static void look_up(struct nodes *n)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};

    n->lookup.data = n;
    int r = uv_getaddrinfo(n->host.loop, &n->lookup, on_looked_up, n->host.job->endpoint_host, NULL, &hints);
    n->looking_up = r == 0;
    if (r < 0)
        look_up_later(n, uv_strerror(r));
}

static void on_begin(uv_timer_t *timer)
{
    struct nodes *n = timer->data;
    const struct job *job = n->host.job;
    struct sockaddr_storage address;

    if (job->hosting == JOB_HOSTS_NOT)
        begin_session(n);
    else if (uv_ip4_addr(job->endpoint_host, 0, (struct sockaddr_in *)&address) == 0 ||
             uv_ip6_addr(job->endpoint_host, 0, (struct sockaddr_in6 *)&address) == 0)
        settle_host(n, endpoint_is_own((const struct sockaddr *)&address), false, false);
    else
        look_up(n);
}

static void begin_session(struct nodes *n)
{
    const struct job *job = n->host.job;
    const struct session_uv_host host = {.loop = n->host.loop,
                                         .host = job->endpoint_host,
                                         .port = n->rendezvous_port,
                                         .on_action = on_action,
                                         .data = n};
    struct session_config config = {.endpoint = n->endpoint,
                                    .cutoff_ns = SESSION_CUTOFF_MS * UINT64_C(1000000),
                                    .hello = {.params = job->params,
                                              .n_workers = (uint32_t)job->n_workers,
                                              .node_rank = job->node_rank}};

    session_copy_text(config.hello.job, sizeof(config.hello.job), job->run_id_text);
    session_copy_text(config.hello.role, sizeof(config.hello.role), job->role);
    session_copy_text(config.hello.addr, sizeof(config.hello.addr), job->local_addr ? job->local_addr : "");
    (void)gethostname(config.hello.host, sizeof(config.hello.host) - 1); /* stays empty if it fails */
    int r = getrandom(&config.hello.nonce, sizeof(config.hello.nonce), 0) == sizeof(config.hello.nonce)
                ? session_uv_create(&n->session, &host, &config)
                : -EIO;
    if (r) {
        say("cannot begin a session with the rendezvous: %s", strerror(-r));
        end(n, 1, NULL);
    } else if (n->is_ready) {
        nodes_ready(n);
    }
}

int nodes_create(struct nodes **ret, const struct nodes_host *host)
{
    struct nodes *n = calloc(1, sizeof(*n));
    const struct job *job = host->job;

    if (!n)
        return -ENOMEM;
    n->host = *host;
    n->began_ms = uv_now(host->loop);
    n->rendezvous_port = job->endpoint_port;
    (void)snprintf(n->endpoint, sizeof(n->endpoint), strchr(job->endpoint_host, ':') ? "[%.256s]:%u" : "%.256s:%u",
                   job->endpoint_host, job->endpoint_port); /* for sentences */
    (void)uv_timer_init(host->loop, &n->timer); /* these two cannot fail */
    n->timer.data = n;
    (void)uv_timer_start(&n->timer, on_begin, 0, 0);
    *ret = n;
    return 0;
}
