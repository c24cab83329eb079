#include "launcher/rdzv/session_uv.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/supervise/death_notice_sock.h"
#include "launcher/cli/job.h"
#include "launcher/rdzv/tcp_client_uv.h"
#include "launcher/util/trace_os.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/decimal.h"
#include "base/time.h"
#include "proto/frame.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/session/agent_message_json.h"
#include "rendezvous/session/session_json.h"

enum { LOOK_WATCH_BODY_MAX = 64 };

/* Of an endpoint. */
struct resolved {
    struct resolver_addresses addresses; /* of the last successful resolution; perhaps none */
    struct resolver *resolver;           /* looks for changed addresses */
};

/* The addresses to dial, each with the name for the certificate of the rendezvous there; NULL: the name of the first endpoint. */
struct dial_targets {
    struct resolver_addresses addresses;
    const char *names[RESOLVER_ADDRESSES_MAX];
};

struct session_uv {
    struct session_uv_host host;
    struct resolved resolved[JOB_ENDPOINTS_MAX];
    struct session machine;
    struct tcp_client *client;
    char redirect_host[SESSION_ADDR_SIZE]; /* of the last redirect, in numbers */
    unsigned n_dials;                      /* tells connections apart in loops around calls */
    struct frame_reader reader;
    struct buf in;
    uv_timer_t timer;
    uv_timer_t look_timer; /* active: the job is looked at */
    uint64_t looked_until_ms;
    uint64_t lease_end_ns; /* as the host knows it */
    bool closing;
};

static void run_session_step(struct session_uv *s, struct session_event event);

/* ---- receiving ---- */

static void report_status(struct session_uv *s)
{
    _cleanup_(buf_finish) struct buf out = {0};

    s->host.listener.report(s->host.listener.data, &out);
    if (s->client && buf_size(&out) > 0)
        tcp_client_send(s->client, buf_bytes(&out), buf_size(&out));
}

static void on_look_timer(uv_timer_t *timer)
{
    struct session_uv *s = timer->data;

    if (s->client && s->machine.link == SESSION_LINK_UP && uv_now(s->host.loop) < s->looked_until_ms)
        report_status(s);
    else
        (void)uv_timer_stop(timer); /* cannot fail */
}

/* The rendezvous asks for the status for a while, and repeats the request. */
static void begin_reports(struct session_uv *s, const struct look_watch *watch)
{
    s->looked_until_ms = uv_now(s->host.loop) + (watch->ms < LOOK_WATCH_MS ? watch->ms : LOOK_WATCH_MS);
    if (watch->stacks)
        s->host.listener.take_stacks(s->host.listener.data);
    if (!uv_is_active((uv_handle_t *)&s->look_timer))
        (void)uv_timer_start(&s->look_timer, on_look_timer, 0,
                             LOOK_PERIOD_MS); /* fails only without a callback */
}

static uint32_t find_cut(const struct session_uv *s)
{
    return s->host.listener.find_cut ? s->host.listener.find_cut(s->host.listener.data) : 0;
}

static void on_body(struct session_uv *s, struct wire_span body)
{
    char error[SESSION_JSON_ERROR_SIZE];
    struct session_view view;
    struct look_watch watch;
    uint32_t number;

    if (session_json_get_renewed(body.data, body.size, &number)) {
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_RENEWED, .number = number});
        return;
    }
    if (s->host.listener.report && body.size < LOOK_WATCH_BODY_MAX &&
        look_get_watch(body.data, body.size, &watch)) {
        begin_reports(s, &watch);
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_ALIVE});
        return;
    }
    if (s->host.listener.on_agent_message && agent_message_is_body(body.data, body.size)) {
        s->host.listener.on_agent_message(s->host.listener.data, body.data, body.size);
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_ALIVE});
        return;
    }
    if (session_json_get_view(body.data, body.size, &view, error))
        run_session_step(
            s, (struct session_event){.kind = SESSION_EVENT_VIEW,
                                      .view = &view,
                                      .cut_from = view.kind == SESSION_VIEW_STOP ? find_cut(s) : 0});
    else
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_FOREIGN, .text = error});
}

static void on_session_frame(struct session_uv *s, const struct frame *frame)
{
    static const enum session_event_kind kinds[FRAME_KIND_COUNT] = {
        [FRAME_ECHO] = SESSION_EVENT_ECHOED,
        [FRAME_OPENED] = SESSION_EVENT_OPENED,
        [FRAME_ALIVE] = SESSION_EVENT_ALIVE,
    };

    if (frame->kind == FRAME_BODY)
        on_body(s, frame->body);
    else
        run_session_step(s, (struct session_event){.kind = kinds[frame->kind]});
}

static void on_bad_frame(struct session_uv *s, int r)
{
    const char version[] = {s->reader.version, '\0'};

    if (r == FRAME_E_VERSION)
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_VERSION, .text = version});
    else
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_FOREIGN,
                                                   .text = r == FRAME_E_LONG
                                                               ? "it sends messages that are too long"
                                                               : "it does not answer as one does"});
}

static void on_session_bytes(void *data, const uint8_t *bytes, size_t n)
{
    struct session_uv *s = data;
    unsigned connection = s->n_dials;
    struct frame frame;
    size_t size;
    int r = buf_append(&s->in, bytes, n);

    if (r) {
        tcp_client_close(steal_ptr(s->client));
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_LOST, .text = "out of memory"});
        return;
    }
    while (s->client && s->n_dials == connection) {
        r = frame_decode(&s->reader, buf_bytes(&s->in), buf_size(&s->in), &frame, &size);
        if (r == FRAME_E_MORE)
            return;
        if (r) {
            on_bad_frame(s, r);
            return;
        }
        on_session_frame(s, &frame);
        if (s->n_dials == connection && s->client)
            buf_consume(&s->in, size);
    }
}

/* ---- connection ---- */

static uint32_t greeting_nonce(const struct session_uv *s)
{
    return (uint32_t)s->machine.hello.nonce.low ^ s->n_dials;
}

/* Without TLS the greeting follows. With TLS the time of the greeting is for the handshake: thousands of handshakes at once take seconds. */
static void on_session_reached(void *data)
{
    run_session_step(data, (struct session_event){.kind = SESSION_EVENT_CONNECTED});
}

/* The greeting asks whether the peer is a rendezvous. The proof of the key is an answer. */
static void on_session_connected(void *data)
{
    struct session_uv *s = data;

    if (s->host.tls)
        run_session_step(s, (struct session_event){.kind = SESSION_EVENT_ECHOED});
    else
        on_session_reached(s);
}

static void on_session_lost(void *data, const char *why)
{
    struct session_uv *s = data;

    s->client = NULL;
    run_session_step(s, (struct session_event){.kind = SESSION_EVENT_LOST, .text = why});
}

static void on_endpoint_found(void *data, const struct resolver_addresses *found)
{
    struct resolved *e = data;

    e->addresses = *found;
    resolver_stop(steal_ptr(e->resolver));
}

/* The rendezvous may have another address now. The answer is for the next attempt: a slow or unreachable resolver does not delay a connection to the known address. */
static void resolve_again(struct session_uv *s, size_t i)
{
    const struct job_endpoint *endpoint = &s->host.endpoints[i];
    struct resolved *e = &s->resolved[i];
    const struct resolver_config config = {.loop = s->host.loop,
                                           .host = endpoint->host,
                                           .port = endpoint->port,
                                           .on_found = on_endpoint_found,
                                           .data = e};

    if ((s->n_dials == 0 && e->addresses.n > 0) || e->resolver ||
        resolver_numeric(endpoint->host, endpoint->port, &e->addresses))
        return;
    if (resolver_start(&e->resolver, &config) != 0)
        e->resolver = NULL; /* the next attempt resolves again */
}

/* The name for the certificate of an endpoint's rendezvous; NULL: the name in the TLS context. */
static const char *name_of_endpoint(const struct session_uv *s, size_t i)
{
    return i == 0 ? NULL : s->host.endpoints[i].host;
}

/* One address of each rendezvous, beginning with another one at each attempt. */
static void gather_addresses(const struct session_uv *s, struct dial_targets *ret)
{
    size_t n = s->host.n_endpoints;

    *ret = (struct dial_targets){0};
    for (size_t i = 0; i < n; i++) {
        size_t at = (s->n_dials + i) % n;
        const struct resolver_addresses *a = &s->resolved[at].addresses;

        if (a->n == 0)
            continue;
        ret->names[ret->addresses.n] = name_of_endpoint(s, at);
        ret->addresses.items[ret->addresses.n++] = a->items[s->n_dials / n % a->n];
    }
}

static bool is_among(const union address_endpoint *address, const struct resolver_addresses *a)
{
    for (size_t i = 0; i < a->n; i++)
        if (resolver_is_same(address, &a->items[i]))
            return true;
    return false;
}

/* Of the rendezvous at the address of a redirect: the name of the endpoint with the same address, and else the address. Bytes of another rendezvous must not choose a name. */
static const char *name_of_redirect(const struct session_uv *s, const union address_endpoint *address)
{
    for (size_t i = 0; i < s->host.n_endpoints; i++)
        if (is_among(address, &s->resolved[i].addresses))
            return name_of_endpoint(s, i);
    return s->redirect_host;
}

/* Where a following crund has sent us: HOST:PORT or [IPV6]:PORT. False: the endpoint is to be dialled. */
static bool parse_redirect(struct session_uv *s, struct dial_targets *ret)
{
    const char *text = s->machine.redirect, *colon = strrchr(text, ':');
    bool is_bracketed = colon && text[0] == '[' && colon > text + 1 && colon[-1] == ']';
    uint64_t port;

    if (!colon || !decimal_parse(colon + 1, 1, UINT16_MAX, &port))
        return false;
    (void)snprintf(s->redirect_host, sizeof(s->redirect_host), "%.*s",
                   (int)(colon - text) - (is_bracketed ? 2 : 0), text + (is_bracketed ? 1 : 0));
    if (!resolver_numeric(s->redirect_host, (uint16_t)port, &ret->addresses))
        return false;
    ret->names[0] = name_of_redirect(s, &ret->addresses.items[0]);
    return true;
}

static void dial_rendezvous(struct session_uv *s)
{
    struct dial_targets to = {.addresses = s->resolved[0].addresses};

    for (size_t i = 0; i < s->host.n_endpoints; i++)
        resolve_again(s, i);
    if (!parse_redirect(s, &to) && s->host.n_endpoints > 1)
        gather_addresses(s, &to);
    const struct tcp_client_config config = {.loop = s->host.loop,
                                             .addresses = &to.addresses,
                                             .names = to.names,
                                             .turn = s->host.n_endpoints > 1 ? 0 : s->n_dials,
                                             .tls = s->host.tls,
                                             .on_reached = on_session_reached,
                                             .on_connected = on_session_connected,
                                             .on_bytes = on_session_bytes,
                                             .on_lost = on_session_lost,
                                             .data = s};

    s->n_dials++;
    buf_reset(&s->in);
    if (s->host.tls)
        frame_reader_init_server(&s->reader); /* no echo comes before the opening */
    else
        frame_reader_init_agent(&s->reader, greeting_nonce(s));
    if (to.addresses.n == 0 || tcp_client_dial(&s->client, &config) != 0)
        s->client = NULL; /* the machine ends the attempt at the deadline, as without an answer */
}

static void send_hello(struct session_uv *s, struct buf *out)
{
    struct session_hello hello;

    session_hello(&s->machine, boot_ns(), &hello);
    if (s->client)
        tcp_client_own_address(s->client, hello.own, sizeof(hello.own));
    if (frame_put_opening(out) == 0)
        (void)session_json_put_hello(
            out, &hello); /* without memory there is no answer, and the hello is sent again */
}

static void send_phase_report(struct session_uv *s, struct buf *out)
{
    struct session_report report;

    session_report(&s->machine, boot_ns(), &report);
    (void)session_json_put_report(out, &report); /* as above: the next hello contains it */
}

static void send_message(struct session_uv *s, enum session_action action)
{
    _cleanup_(buf_finish) struct buf out = {0};

    if (action == SESSION_DO_GREET && s->host.tls)
        return;
    if (action == SESSION_DO_GREET)
        (void)frame_put_greeting(&out, greeting_nonce(s)); /* as above */
    else if (action == SESSION_DO_HELLO)
        send_hello(s, &out);
    else if (action == SESSION_DO_REPORT)
        send_phase_report(s, &out);
    else if (action == SESSION_DO_RENEW)
        (void)session_json_put_renew(&out, s->machine.renewal); /* as above */
    else
        (void)frame_put_alive(&out); /* as above */
    if (s->client && buf_size(&out) > 0)
        tcp_client_send(s->client, buf_bytes(&out), buf_size(&out));
}

/* ---- trace ---- */

static const char *session_event_name(unsigned kind)
{
    static const char *const names[SESSION_EVENT_COUNT] = {
        [SESSION_EVENT_START] = "start",
        [SESSION_EVENT_CONNECTED] = "connected",
        [SESSION_EVENT_LOST] = "lost",
        [SESSION_EVENT_ECHOED] = "echoed",
        [SESSION_EVENT_OPENED] = "opened",
        [SESSION_EVENT_FOREIGN] = "foreign",
        [SESSION_EVENT_VERSION] = "version",
        [SESSION_EVENT_ALIVE] = "alive",
        [SESSION_EVENT_RENEWED] = "renewed",
        [SESSION_EVENT_SLOW] = "slow",
        [SESSION_EVENT_VIEW] = "view",
        [SESSION_EVENT_TIMER] = "timer",
        [SESSION_EVENT_GROUP_READY] = "group-ready",
        [SESSION_EVENT_GROUP_FAILED] = "group-failed",
        [SESSION_EVENT_GROUP_DONE] = "group-done",
        [SESSION_EVENT_DRAIN] = "drain",
        [SESSION_EVENT_QUIET] = "quiet",
        [SESSION_EVENT_LEAVE] = "leave",
        [SESSION_EVENT_GROUP_GONE] = "group-gone",
    };

    return kind < SESSION_EVENT_COUNT && names[kind] ? names[kind] : "?";
}

static const char *session_action_name(unsigned action)
{
    static const char *const names[SESSION_ACTION_COUNT] = {
        [SESSION_DO_DIAL] = "dial",     [SESSION_DO_GREET] = "greet",       [SESSION_DO_HELLO] = "hello",
        [SESSION_DO_REPORT] = "report", [SESSION_DO_ALIVE] = "alive",       [SESSION_DO_CLOSE] = "close",
        [SESSION_DO_START] = "start",   [SESSION_DO_STOP] = "stop",         [SESSION_DO_DRAIN] = "drain",
        [SESSION_DO_QUIET] = "quiet",   [SESSION_DO_PROGRESS] = "progress", [SESSION_DO_LOG] = "log",
        [SESSION_DO_END] = "end",       [SESSION_DO_RENEW] = "renew",       [SESSION_DO_FENCE] = "fence",
        [SESSION_DO_FENCED] = "fenced",
    };

    return action < SESSION_ACTION_COUNT && names[action] ? names[action] : "?";
}

static void trace_session(const struct session *m, const struct session_event *event,
                          const struct session_actions *actions)
{
    trace_line("session event %s link=%s phase=%d generation=%lld%s%s", session_event_name(event->kind),
               session_link_names[m->link], (int)m->phase, (long long)m->generation,
               event->text ? " text=" : "", event->text ? event->text : "");
    for (size_t i = 0; i < actions->n_items; i++)
        trace_line("session action %s", session_action_name(actions->items[i]));
}

/* ---- machine ---- */

static void perform_session_action(struct session_uv *s, enum session_action action,
                                   const struct session_view *view)
{
    switch (action) {
    case SESSION_DO_DIAL:
        dial_rendezvous(s);
        break;
    case SESSION_DO_CLOSE:
        tcp_client_close(steal_ptr(s->client));
        break;
    case SESSION_DO_GREET:
    case SESSION_DO_HELLO:
    case SESSION_DO_REPORT:
    case SESSION_DO_ALIVE:
    case SESSION_DO_RENEW:
        send_message(s, action);
        break;
    default:
        s->host.on_action(s->host.data, action, view);
        break;
    }
}

static void on_session_timer(uv_timer_t *timer)
{
    struct session_uv *s = timer->data;

    if (s->client && session_is_overdue(&s->machine, boot_ns()))
        run_session_step(
            s, (struct session_event){
                   .kind = SESSION_EVENT_SLOW,
                   .slack_ns = tcp_client_slack_ns(s->client, s->machine.hello.params.node_timeout_ms / 2)});
    run_session_step(s, (struct session_event){.kind = SESSION_EVENT_TIMER});
}

static void arm_session_timer(struct session_uv *s)
{
    uint64_t deadline_ns = session_deadline(&s->machine), now_ns = boot_ns();

    if (deadline_ns == UINT64_MAX) {
        (void)uv_timer_stop(&s->timer); /* cannot fail */
        return;
    }
    uv_update_time(s->host.loop);
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
    (void)uv_timer_start(&s->timer, on_session_timer, ms, 0); /* fails only without a callback */
}

/* Before the actions of the step, which may start workers. */
static void pass_lease_on(struct session_uv *s)
{
    uint64_t end_ns = session_lease_end(&s->machine);

    if (end_ns == s->lease_end_ns)
        return;
    s->lease_end_ns = end_ns;
    if (s->host.listener.on_lease)
        s->host.listener.on_lease(s->host.listener.data, end_ns);
}

static void run_session_step(struct session_uv *s, struct session_event event)
{
    struct session_actions actions;

    if (s->closing)
        return;
    event.now_ns = boot_ns();
    session_step(&s->machine, &event, &actions);
    pass_lease_on(s);
    if (trace_sink)
        trace_session(&s->machine, &event, &actions);
    for (size_t i = 0; i < actions.n_items && !s->closing; i++)
        perform_session_action(s, actions.items[i], event.view);
    if (!s->closing)
        arm_session_timer(s);
}

void session_uv_step(struct session_uv *s, struct session_event event)
{
    event.when_ns += boot_ns() - now_ns();
    if (event.kind == SESSION_EVENT_GROUP_FAILED || event.kind == SESSION_EVENT_GROUP_READY)
        event.cut_from = find_cut(s);
    run_session_step(s, event);
}

void session_uv_send(struct session_uv *s, const struct buf *frames)
{
    if (s->client && s->machine.link == SESSION_LINK_UP && buf_size(frames) > 0)
        tcp_client_send(s->client, buf_bytes(frames), buf_size(frames));
}

bool session_uv_peer(const struct session_uv *s, struct resolver_addresses *ret)
{
    const union address_endpoint *to = s->client ? tcp_client_peer(s->client) : NULL;

    if (!to)
        return false;
    *ret = (struct resolver_addresses){.n = 1, .items = {*to}};
    return true;
}

const struct session *session_uv_machine(const struct session_uv *s)
{
    return &s->machine;
}

bool session_uv_death_notice(const struct session_uv *s, struct death_notice *ret)
{
    const union address_endpoint *to = s->client ? tcp_client_peer(s->client) : NULL;
    struct session_hello hello;

    if (!to)
        return false;
    session_hello(&s->machine, boot_ns(), &hello);
    return death_notice_prepare(ret, &hello, &to->any,
                                to->any.sa_family == AF_INET6 ? sizeof(to->v6) : sizeof(to->v4));
}

/* ---- life ---- */

void session_uv_create(struct session_uv **ret, const struct session_uv_host *host,
                       const struct session_config *config)
{
    static struct session_uv session; /* a process has one job */
    struct session_uv *s = &session;

    s->host = *host;
    s->host.addresses = NULL;
    s->resolved[0].addresses = *host->addresses;
    session_init(&s->machine, config);
    s->lease_end_ns = UINT64_MAX;
    (void)uv_timer_init(host->loop, &s->timer); /* neither can fail */
    (void)uv_timer_init(host->loop, &s->look_timer);
    s->timer.data = s->look_timer.data = s;
    *ret = s;
    run_session_step(s, (struct session_event){.kind = SESSION_EVENT_START});
}

void session_uv_destroy(struct session_uv *s)
{
    if (!s || s->closing)
        return;
    s->closing = true;
    tcp_client_close(steal_ptr(s->client));
    for (size_t i = 0; i < s->host.n_endpoints; i++) {
        resolver_stop(steal_ptr(s->resolved[i].resolver));
    }
    uv_close((uv_handle_t *)&s->timer, NULL);
    uv_close((uv_handle_t *)&s->look_timer, NULL);
    buf_finish(&s->in);
}
