#include "launcher/rdzv/session_uv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/supervise/death_notice_sock.h"
#include "launcher/rdzv/tcp_client_uv.h"
#include "base/buf.h"
#include "proto/frame.h"
#include "rendezvous/session_json.h"

struct session_uv {
    struct session_uv_host host;
    struct session machine;
    struct tcp_client *link;
    struct resolver_addresses addresses; /* as they were found last */
    struct resolver *resolver;           /* whether they still are those of the name */
    unsigned n_dials; /* which connection it is, while things are called that may close it */
    struct frame_reader reader;
    struct buf in;
    uv_timer_t timer;
    bool closing;
};

static void step(struct session_uv *s, struct session_event event);

/* ------------------------------------------------------------------ hearing */

static void hear_body(struct session_uv *s, struct wire_span body)
{
    char error[SESSION_JSON_ERROR_SIZE];
    struct session_view view;

    if (session_json_get_view(body.data, body.size, &view, error))
        step(s, (struct session_event){.kind = SESSION_EVENT_VIEW, .view = &view});
    else
        step(s, (struct session_event){.kind = SESSION_EVENT_FOREIGN, .text = error});
}

static void hear_frame(struct session_uv *s, const struct frame *frame)
{
    static const enum session_event_kind kinds[FRAME_KIND_COUNT] = {
        [FRAME_ECHO] = SESSION_EVENT_ECHOED,
        [FRAME_OPENED] = SESSION_EVENT_OPENED,
        [FRAME_ALIVE] = SESSION_EVENT_ALIVE,
    };

    if (frame->kind == FRAME_BODY)
        hear_body(s, frame->body);
    else
        step(s, (struct session_event){.kind = kinds[frame->kind]});
}

static void hear_nonsense(struct session_uv *s, int r)
{
    const char version[] = {s->reader.version, '\0'};

    if (r == FRAME_E_VERSION)
        step(s, (struct session_event){.kind = SESSION_EVENT_VERSION, .text = version});
    else
        step(s, (struct session_event){.kind = SESSION_EVENT_FOREIGN,
                                       .text = r == FRAME_E_LONG ? "it sends messages that are too long"
                                                                 : "it does not answer as one does"});
}

static void on_bytes(void *data, const uint8_t *bytes, size_t n)
{
    struct session_uv *s = data;
    unsigned connection = s->n_dials;
    struct frame frame;
    size_t size;
    int r = buf_append(&s->in, bytes, n);

    if (r) {
        tcp_client_close(s->link);
        s->link = NULL;
        step(s, (struct session_event){.kind = SESSION_EVENT_LOST, .text = "out of memory"});
        return;
    }
    while (s->link && s->n_dials == connection) {
        r = frame_decode(&s->reader, buf_bytes(&s->in), buf_size(&s->in), &frame, &size);
        if (r == FRAME_E_MORE)
            return;
        if (r) {
            hear_nonsense(s, r);
            return;
        }
        hear_frame(s, &frame);
        if (s->n_dials == connection && s->link)
            buf_consume(&s->in, size);
    }
}

/* ------------------------------------------------------------------ connection */

static uint32_t greeting_nonce(const struct session_uv *s)
{
    return (uint32_t)s->machine.hello.nonce.low ^ s->n_dials;
}

static void on_connected(void *data)
{
    step(data, (struct session_event){.kind = SESSION_EVENT_CONNECTED});
}

static void on_lost(void *data, const char *why)
{
    struct session_uv *s = data;

    s->link = NULL;
    step(s, (struct session_event){.kind = SESSION_EVENT_LOST, .text = why});
}

static void on_found(void *data, const struct resolver_addresses *found)
{
    struct session_uv *s = data;

    s->addresses = *found;
    resolver_stop(s->resolver);
    s->resolver = NULL;
}

/* The rendezvous may have moved. No attempt waits for the answer: it is for the next one, and a resolver that is slow
 * or gone does not keep us from an address that we know. */
static void look_again(struct session_uv *s)
{
    const struct resolver_config config = {
        .loop = s->host.loop, .host = s->host.host, .port = s->host.port, .on_found = on_found, .data = s};
    struct resolver_addresses numeric;

    if (s->n_dials == 0 || s->resolver || resolver_numeric(s->host.host, s->host.port, &numeric))
        return;
    if (resolver_start(&s->resolver, &config) != 0)
        s->resolver = NULL; /* the next attempt asks again */
}

static void dial(struct session_uv *s)
{
    look_again(s);
    const struct tcp_client_config config = {.loop = s->host.loop,
                                             .addresses = &s->addresses,
                                             .turn = s->n_dials++,
                                             .on_connected = on_connected,
                                             .on_bytes = on_bytes,
                                             .on_lost = on_lost,
                                             .data = s};

    buf_reset(&s->in);
    frame_reader_init_agent(&s->reader, greeting_nonce(s));
    if (tcp_client_dial(&s->link, &config) != 0)
        s->link = NULL; /* the machine gives this attempt up in time, as one that nobody answers */
}

static void hang_up(struct session_uv *s)
{
    tcp_client_close(s->link);
    s->link = NULL;
}

static void send_hello(struct session_uv *s, struct buf *out)
{
    struct session_hello hello;

    session_hello(&s->machine, uv_hrtime(), &hello);
    if (s->link)
        tcp_client_own_address(s->link, hello.own, sizeof(hello.own));
    if (frame_put_opening(out) == 0)
        (void)session_json_put_hello(out, &hello); /* without memory it is not answered, and said anew */
}

static void send_report(struct session_uv *s, struct buf *out)
{
    struct session_report report;

    session_report(&s->machine, uv_hrtime(), &report);
    (void)session_json_put_report(out, &report); /* as above: the next hello has it in it */
}

static void speak(struct session_uv *s, enum session_action action)
{
    struct buf out = {0};

    if (action == SESSION_DO_GREET)
        (void)frame_put_greeting(&out, greeting_nonce(s)); /* as above */
    else if (action == SESSION_DO_HELLO)
        send_hello(s, &out);
    else if (action == SESSION_DO_REPORT)
        send_report(s, &out);
    else
        (void)frame_put_alive(&out); /* as above */
    if (s->link && buf_size(&out) > 0)
        tcp_client_send(s->link, buf_bytes(&out), buf_size(&out));
    buf_finish(&out);
}

/* ------------------------------------------------------------------ machine */

static void carry_out(struct session_uv *s, enum session_action action, const struct session_view *view)
{
    switch (action) {
    case SESSION_DO_DIAL:
        dial(s);
        break;
    case SESSION_DO_CLOSE:
        hang_up(s);
        break;
    case SESSION_DO_GREET:
    case SESSION_DO_HELLO:
    case SESSION_DO_REPORT:
    case SESSION_DO_ALIVE:
        speak(s, action);
        break;
    default:
        s->host.on_action(s->host.data, action, view);
        break;
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct session_uv *s = timer->data;

    if (s->link && session_is_overdue(&s->machine, uv_hrtime()))
        step(s, (struct session_event){
                    .kind = SESSION_EVENT_SLOW,
                    .slack_ns = tcp_client_slack_ns(s->link, s->machine.hello.params.node_timeout_ms / 2)});
    step(s, (struct session_event){.kind = SESSION_EVENT_TIMER});
}

static void arm(struct session_uv *s)
{
    uint64_t deadline_ns = session_deadline(&s->machine), now_ns = uv_hrtime();

    if (deadline_ns == UINT64_MAX) {
        (void)uv_timer_stop(&s->timer); /* cannot fail on a timer that exists */
        return;
    }
    uv_update_time(s->host.loop);
    uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
    (void)uv_timer_start(&s->timer, on_timer, ms, 0); /* fails only without a callback */
}

static void step(struct session_uv *s, struct session_event event)
{
    struct session_actions actions;

    if (s->closing)
        return;
    event.now_ns = uv_hrtime();
    session_step(&s->machine, &event, &actions);
    for (size_t i = 0; i < actions.n_items && !s->closing; i++)
        carry_out(s, actions.items[i], event.view);
    if (!s->closing)
        arm(s);
}

void session_uv_step(struct session_uv *s, struct session_event event)
{
    step(s, event);
}

const struct session *session_uv_machine(const struct session_uv *s)
{
    return &s->machine;
}

bool session_uv_last_word(const struct session_uv *s, struct death_notice *ret)
{
    struct sockaddr_storage to;
    int size = sizeof(to);
    struct session_hello hello;

    if (!s->link || tcp_client_peer(s->link, &to, &size) < 0)
        return false;
    session_hello(&s->machine, uv_hrtime(), &hello);
    return death_notice_write(ret, &hello, (const struct sockaddr *)&to, (socklen_t)size);
}

/* ------------------------------------------------------------------ life */

int session_uv_create(struct session_uv **ret, const struct session_uv_host *host,
                      const struct session_config *config)
{
    struct session_uv *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->host = *host;
    s->host.addresses = NULL;
    s->addresses = *host->addresses;
    session_init(&s->machine, config);
    (void)uv_timer_init(host->loop, &s->timer); /* cannot fail */
    s->timer.data = s;
    *ret = s;
    step(s, (struct session_event){.kind = SESSION_EVENT_START});
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct session_uv *s = handle->data;

    buf_finish(&s->in);
    free(s);
}

void session_uv_destroy(struct session_uv *s)
{
    if (!s || s->closing)
        return;
    s->closing = true;
    hang_up(s);
    resolver_stop(s->resolver);
    s->resolver = NULL;
    uv_close((uv_handle_t *)&s->timer, on_closed);
}
