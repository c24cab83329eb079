/*
 * The connection of an agent, from the byte that distinguishes an agent from a client of the store.
 *
 * The happy path: opening and hello arrive in a single read, are answered with opening and view in a single write,
 * and then a frame comes and goes now and then. Frames are decoded in the read buffer; only the start of an
 * incomplete frame is kept, and a further read takes no more than the rest of the frame.
 *
 * Ways to fail: another version or bytes that are no frame; a body that cannot be parsed (the reason is
 * sent to the agent); no hello in time; an agent that does not read; the end of the stream or an error; the
 * core closes the connection because the node is lost, has left, or came again over another connection. The core,
 * not this file, notices a dead network, as silence.
 *
 * When crund closes a connection, the connection is shut down in order: queued output is sent, the own end is shut,
 * and input is discarded until the agent has closed its end, because a close with unread input makes the kernel
 * send a reset that destroys the output.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"
#include "base/utf8.h"
#include "proto/address.h"
#include "proto/tls_openssl.h"
#include "rendezvous/agents/rounds_debug_uv.h"
#include "rendezvous/agents/rounds_look_uv.h"
#include "rendezvous/agents/agent_messages_uv.h"
#include "rendezvous/agents/rounds_state_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/session/session_json.h"
#include "rendezvous/agents/tcp_liveness_os.h"

enum { HANDSHAKE_TURN_NS = 1000000, HANDSHAKE_MEMORY = 24 * 1024 };

static void on_agent_poll(uv_poll_t *poll, int status, int events);

static void __attribute__((format(printf, 2, 3)))
agent_conn_log(struct agent_conn *a, const char *format, ...)
{
    char what[SESSION_JSON_ERROR_SIZE], who[INET6_ADDRSTRLEN + 32];

    (void)format_arguments(what, sizeof(what), format);
    server_format_peer(a->fd, who, sizeof(who));
    server_log(a->server, -1, "agent, %s %s", who, what);
}

/* ---- polling ---- */

static void update_agent_polling(struct agent_conn *a)
{
    uint8_t events = (list_is_empty(&a->handshake) ? UV_READABLE : 0) |
                     (buf_size(&a->out) + buf_size(&a->wire) > 0 ? UV_WRITABLE : 0);

    if (events == a->events || a->closing)
        return;
    a->events = events;
    /* Both fail only when another handle watches the same fd. */
    if (events)
        (void)uv_poll_start(&a->poll, events, on_agent_poll);
    else
        (void)uv_poll_stop(&a->poll);
}

/* ---- deadlines: for the hello, and for the end ---- */

static void start_hello_timeout(struct agent_conn *a)
{
    deadlines_set(&a->shell->pending_hello, &a->deadline, a->server->limits.handshake_ms);
}

void agent_conn_expire(struct deadline *d)
{
    struct agent_conn *a = list_entry(d, struct agent_conn, deadline);
    double allowed_s = a->server->limits.handshake_ms / 1000.0;

    if (!a->shutting_down && a->session.node)
        agent_conn_log(a, "left a frame incomplete for %.3g s: closed", allowed_s);
    else if (!a->shutting_down)
        agent_conn_log(a, "sent no hello within %.3g s: closed", allowed_s);
    agent_conn_close(a);
}

bool agents_make_room(void *shell, enum admission_place place)
{
    struct rounds_shell *r = shell;
    struct agent_conn *a = list_first(&r->pending_hello.list, struct agent_conn, deadline.link);
    uint64_t age_ms = a ? uv_now(r->server->loop) + r->server->limits.handshake_ms - a->deadline.at_ms : 0;

    if (!a || a->session.node ||
        !admission_may_close(&r->server->admission, ADMISSION_UNJOINED, age_ms, place))
        return false;
    agent_conn_log(a, "has sent no hello while connections are used up: closed");
    agent_conn_close(a);
    return true;
}

/* ---- sending ---- */

/* Output to the agent fails: discards queued output. Input is still read to the end of the stream, which closes
 * the connection. */
static void agent_conn_drop_output(struct agent_conn *a)
{
    a->write_failed = true;
    buf_reset(&a->out);
    buf_reset(&a->wire);
    buf_reset(&a->held);
}

/* Breaks the connection as a broken network would: reading the socket shows the end. The close has to be a reset. An agent
 * that does not read may have no room for the FIN behind unread bytes, nor, with a buffer made smaller, for the own
 * acknowledgements. Both kernels would then send the same bytes again for minutes. */
void agent_conn_cut(struct agent_conn *a)
{
    const struct linger reset = {.l_onoff = 1};

    agent_conn_drop_output(a);
    (void)setsockopt(a->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)); /* on failure: a close in order */
    (void)shutdown(a->fd, SHUT_RDWR);                                      /* fails when broken already */
}

size_t agent_conn_unread(const struct agent_conn *a)
{
    return buf_size(&a->out) + buf_size(&a->wire) + buf_size(&a->held);
}

static bool agent_conn_queue(struct agent_conn *a, struct buf *to, const struct buf *frame)
{
    if (agent_conn_unread(a) + buf_size(frame) > AGENT_CONN_OUTPUT_MAX) {
        agent_conn_log(a, "does not read its views (%d KiB unread): closed", AGENT_CONN_OUTPUT_MAX / 1024);
        return false;
    }
    if (buf_append(to, buf_bytes(frame), buf_size(frame)) == 0)
        return true;
    agent_conn_log(a, "closed: out of memory for its view");
    return false;
}

static void agent_conn_want_flush(struct agent_conn *a)
{
    if (list_is_empty(&a->unsent_link))
        list_append(&a->shell->unsent, &a->unsent_link);
}

void agent_conn_send(struct agent_conn *a, const struct buf *frame, uint64_t mark)
{
    bool hold = mark > 0 || buf_size(&a->held) > 0;

    if (a->write_failed || a->shutting_down || a->closing)
        return;
    if (!agent_conn_queue(a, hold ? &a->held : &a->out, frame)) {
        agent_conn_cut(a);
        return;
    }
    if (mark > a->held_mark)
        a->held_mark = mark;
    if (hold && list_is_empty(&a->held_link))
        list_append(&a->shell->holding, &a->held_link);
    if (!hold)
        agent_conn_want_flush(a);
}

void agent_conn_send_alive(struct agent_conn *a)
{
    if (a->write_failed || a->shutting_down || a->closing || buf_size(&a->out) + buf_size(&a->wire) > 0)
        return; /* waiting output is a sign of life, too */
    if (frame_put_alive(&a->out) < 0)
        agent_conn_cut(a);
    else
        agent_conn_want_flush(a);
}

/* Ahead of held views: a slow disk must not end a lease. */
void agent_conn_send_renewed(struct agent_conn *a, uint32_t number)
{
    _cleanup_(buf_finish) struct buf frame = {0};

    if (a->write_failed || a->shutting_down || a->closing)
        return;
    if (session_json_put_renewed(&frame, number) < 0 || !agent_conn_queue(a, &a->out, &frame))
        agent_conn_cut(a);
    else
        agent_conn_want_flush(a);
}

void agent_conn_release(struct agent_conn *a, uint64_t mark)
{
    if (a->held_mark > mark)
        return;
    if (buf_append(&a->out, buf_bytes(&a->held), buf_size(&a->held)) < 0)
        agent_conn_cut(a);
    buf_reset(&a->held);
    list_unlink(&a->held_link);
    a->held_mark = 0;
    agent_conn_want_flush(a);
}

/* The bytes for the socket: the frames, or their records. */
static struct buf *agent_conn_records(struct agent_conn *a)
{
    if (!a->tls)
        return &a->out;
    if (buf_size(&a->out) > 0 && tls_link_send(a->tls, buf_bytes(&a->out), buf_size(&a->out), &a->wire) < 0)
        agent_conn_cut(a);
    buf_reset(&a->out);
    if (a->shutting_down && !a->tls_finished && buf_size(&a->held) == 0) {
        a->tls_finished = true;
        (void)tls_link_finish(a->tls, &a->wire); /* without the notice the agent sees a cut */
    }
    return &a->wire;
}

void agent_conn_flush(struct agent_conn *a)
{
    struct buf *records = agent_conn_records(a);

    list_unlink(&a->unsent_link);
    if (buf_size(records) > 0) {
        ssize_t n = RETRY(write(a->fd, buf_bytes(records), buf_size(records)));

        if (n < 0 && errno != EAGAIN)
            agent_conn_drop_output(a);
        else if (n > 0)
            buf_consume(records, (size_t)n);
        if (buf_size(records) == 0)
            buf_reset(records);
    }
    if (a->shutting_down && !a->shut && agent_conn_unread(a) == 0) {
        a->shut = true;
        (void)shutdown(a->fd, SHUT_WR); /* fails when broken already */
    }
    update_agent_polling(a);
}

/* ---- the end ---- */

void agent_conn_shutdown(struct agent_conn *a)
{
    if (a->shutting_down || a->closing)
        return;
    a->shutting_down = true;
    rounds_debug_conn(a->shell, a, "shut down", false);
    start_hello_timeout(a);
    agent_conn_want_flush(a);
}

/* Approximate memory of OpenSSL until the end of the handshake. */
static size_t handshake_memory(const struct agent_conn *a)
{
    return a->tls && !tls_link_is_established(a->tls) ? HANDSHAKE_MEMORY : 0;
}

static void agent_conn_charge_input(struct agent_conn *a)
{
    bool waits = buf_size(&a->in) > 0 && !a->closing;

    a->server->session_input -= a->charged_input;
    a->charged_input = a->in.capacity + handshake_memory(a);
    a->server->session_input += a->charged_input;
    if (!a->session.node || a->shutting_down)
        return; /* a has a deadline already */
    if (!waits)
        list_unlink(&a->deadline.link);
    else if (list_is_empty(&a->deadline.link))
        start_hello_timeout(a);
}

void agent_conn_close(struct agent_conn *a)
{
    struct rounds_event gone = {.kind = ROUNDS_DISCONNECTED,
                                .session = &a->session,
                                .orderly =
                                    a->eof && !a->write_failed && (!a->tls || tls_link_is_finished(a->tls))};
    struct server *s = a->server;

    assert(!a->closing);
    rounds_debug_conn(a->shell, a, "closed", false);
    a->closing = true;
    buf_finish(&a->in);
    buf_finish(&a->out);
    buf_finish(&a->wire);
    buf_finish(&a->held);
    rounds_look_forget(a);
    tls_link_free(a->tls);
    a->tls = NULL;
    agent_conn_charge_input(a);
    list_unlink(&a->link);
    list_unlink(&a->deadline.link);
    list_unlink(&a->unsent_link);
    list_unlink(&a->held_link);
    list_unlink(&a->handshake);
    server_close_conn(s, &a->poll);
    cleanup_close(&a->fd); /* released by uv_close() above */
    rounds_shell_step(a->shell, &gone);
    server_peer_gone(s, a->fd);
}

/* ---- frames ---- */

static void send_last_view(struct agent_conn *a, const struct session_view *view)
{
    _cleanup_(buf_finish) struct buf frame = {0};

    if (session_json_put_view(&frame, view) == 0)
        agent_conn_send(a, &frame, 0);
    agent_conn_shutdown(a);
}

/* Sends the reason to the agent, which ends with the reason: trying again would not help. */
static void refuse_agent(struct agent_conn *a, const char *why)
{
    struct session_view view = session_view_refused(why);

    view.term = rounds_state_term(a->shell->state);
    agent_conn_log(a, "was refused: %s", why);
    send_last_view(a, &view);
}

/* The address of an end of the connection, numeric. An agent on a unix socket is on the same machine, as on loopback. */
static void format_endpoint(int fd, bool is_peer, char *text, socklen_t n)
{
    union address_endpoint at = {0};
    socklen_t size = sizeof(at);

    text[0] = 0;
    if ((is_peer ? getpeername(fd, &at.any, &size) : getsockname(fd, &at.any, &size)) < 0)
        return; /* the peer has disconnected: no address is needed */
    if (!address_format(&at.any, text, n))
        (void)snprintf(text, n, "127.0.0.1");
}

/* The death notice of an ended agent: the agent's guardian sends the notice in the clear, once, and proves the origin by
 * the nonce. */
static bool is_death_notice(struct agent_conn *a, const struct session_hello *hello)
{
    return hello->report.phase == SESSION_LEFT && rounds_has_node(&a->shell->core, hello->job, hello->nonce);
}

/* A closed job is for agents with a proof of the job's key. NULL: the agent may join; else a sentence for the agent. */
static const char *why_not_allowed(struct agent_conn *a, const struct session_hello *hello)
{
    struct server *s = a->server;
    struct secret_key key;

    if (!s->tls)
        return NULL;
    if (a->tls && tls_link_is_certified(a->tls))
        return tls_link_purpose(a->tls) == KEY_AGENT ? NULL : "its certificate was presented for another use";
    if (a->tls)
        return strcmp(tls_link_job(a->tls), hello->job) == 0 && tls_link_purpose(a->tls) == KEY_AGENT
                   ? NULL
                   : "the job that its secret was proved for is another one than the job it joins";
    if (s->security.certified)
        return is_death_notice(a, hello)
                   ? NULL
                   : "the rendezvous serves agents with a certificate alone: start crun with --tls-cert, --tls-key and "
                     "--tls-ca";
    bool closed = s->security.find_key(s->security.data, KEY_AGENT, hello->job, &key) != 0;
    key_erase(&key, sizeof(key));
    if (is_death_notice(a, hello))
        return NULL;
    if (closed)
        return "this job has a secret, and this crun has none: start it with the secret of the other nodes "
               "(--secret-file, CRUN_SECRET_FILE, or ~/.config/crun/secret)";
    return s->security.require
               ? "the rendezvous serves jobs with a secret alone (--security=require), and has none for this job"
               : NULL;
}

/* Another crund leads, or none. */
static void send_elsewhere(struct agent_conn *a)
{
    struct session_view view = {
        .kind = SESSION_VIEW_ELSEWHERE, .generation = -1, .cause = session_cause_empty(SESSION_CAUSE_NONE)};

    text_copy(view.leader, sizeof(view.leader), a->shell->state->kind->leader(a->shell->state));
    send_last_view(a, &view);
}

static void receive_hello(struct agent_conn *a, const struct session_hello *hello)
{
    char peer[INET6_ADDRSTRLEN], local[INET6_ADDRSTRLEN];
    const char *why = why_not_allowed(a, hello);

    if (why) {
        refuse_agent(a, why);
        return;
    }
    if (!a->shell->leads) {
        send_elsewhere(a);
        return;
    }

    a->can_report = hello->can_report;
    format_endpoint(a->fd, true, peer, sizeof(peer));
    format_endpoint(a->fd, false, local, sizeof(local));
    rounds_shell_step(a->shell, &(struct rounds_event){.kind = ROUNDS_HELLO,
                                                       .session = &a->session,
                                                       .hello = hello,
                                                       .peer = peer,
                                                       .local = local,
                                                       .owner = a->tls ? 0 : a->owner});
    if (a->session.node && !a->closing)
        list_unlink(&a->deadline.link); /* from here on silence ends a */
    if (a->shell->closed_for)
        server_close_jobs(a->server, a->shell->closed_for);
}

/* The agent has to read the answer before the next request, so that answers cannot pile up. */
static void receive_look(struct agent_conn *a, const struct look_request *request)
{
    const char *why = rounds_look_fault(a, request);

    if (why) {
        refuse_agent(a, why);
        return;
    }
    if (!a->shell->leads) {
        send_elsewhere(a); /* no job is known here */
        return;
    }
    if (buf_size(&a->out) + buf_size(&a->wire) > AGENT_CONN_OUTPUT_MAX ||
        rounds_look(a->shell, request, LOOK_ANSWER_MAX, &a->out) < 0) {
        agent_conn_log(a, "asks to look again before it has read the answer, or memory is out: closed");
        agent_conn_cut(a);
        return;
    }
    if (!a->session.node)
        start_hello_timeout(a); /* between two looks */
    agent_conn_want_flush(a);
    rounds_shell_flush(a->shell); /* the agents are asked to report */
}

static void receive_body(struct agent_conn *a, struct wire_span body)
{
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];

    if (!session_json_get_message(body.data, body.size, &message, error))
        refuse_agent(a, error);
    else if (message.kind == SESSION_JSON_HELLO)
        receive_hello(a, &message.hello);
    else if (message.kind == SESSION_JSON_RENEW)
        rounds_shell_step(
            a->shell,
            &(struct rounds_event){.kind = ROUNDS_RENEW, .session = &a->session, .number = message.renewal});
    else if (message.kind == SESSION_JSON_LOOK)
        receive_look(a, &message.look);
    else if (message.kind == SESSION_JSON_STATUS)
        rounds_look_status(a, &message.piece, body.data, body.size);
    else if (message.kind == SESSION_JSON_AGENT_MESSAGE)
        agent_messages_forward(a, &message.agent_message, body.data, body.size);
    else
        rounds_shell_step(
            a->shell,
            &(struct rounds_event){.kind = ROUNDS_REPORT, .session = &a->session, .report = &message.report});
}

static void open_session(struct agent_conn *a)
{
    if (frame_put_opening(&a->out) < 0)
        agent_conn_cut(a);
    else
        agent_conn_want_flush(a);
}

static void receive_frame(struct agent_conn *a, const struct frame *frame)
{
    switch (frame->kind) {
    case FRAME_OPENED:
        open_session(a);
        break;
    case FRAME_ALIVE:
        rounds_shell_step(a->shell, &(struct rounds_event){.kind = ROUNDS_ALIVE, .session = &a->session});
        break;
    case FRAME_BODY:
        receive_body(a, frame->body);
        break;
    default: /* an echo is for agents */
        break;
    }
}

/* No frame can follow. */
static void reject_bytes(struct agent_conn *a, int result)
{
    switch (result) {
    case FRAME_E_VERSION:
        agent_conn_log(a, "speaks version %c of the agent session and this rendezvous version %c: closed",
                       a->reader.version, FRAME_OPENING[FRAME_OPENING_VERSION_AT]);
        open_session(a); /* with the own version */
        break;
    case FRAME_E_LONG:
        agent_conn_log(a, "sent a frame of %zu bytes, and at most %d are allowed: closed", a->reader.need,
                       FRAME_BODY_MAX);
        break;
    default:
        agent_conn_log(a, "began like an agent of crun and went on otherwise: closed");
        break;
    }
    agent_conn_shutdown(a);
}

/* Takes the complete frames; returns the number of bytes taken. */
static size_t take_frames(struct agent_conn *a, const uint8_t *data, size_t n)
{
    size_t done = 0, size;
    struct frame frame;
    int r = 0;

    while (r == 0 && !a->shutting_down && !a->closing) {
        r = frame_decode(&a->reader, data + done, n - done, &frame, &size);
        if (r == 0) {
            receive_frame(a, &frame);
            done += size;
        }
    }
    if (r > FRAME_E_MORE)
        reject_bytes(a, r);
    if (!list_is_empty(&a->unsent_link))
        agent_conn_flush(a); /* also output from outside of the core's steps */
    return a->shutting_down ? n : done;
}

/* ---- receiving ---- */

static bool agent_conn_take(struct agent_conn *a, const uint8_t *data, size_t n)
{
    size_t done = take_frames(a, data, n);

    if (a->closing || done == n)
        return !a->closing;
    if (buf_append(&a->in, data + done, n - done) < 0) {
        agent_conn_log(a, "closed: out of memory for its frame");
        agent_conn_close(a);
        return false;
    }
    agent_conn_charge_input(a);
    return true;
}

/* The frame whose start was kept has grown. */
static bool agent_conn_take_kept(struct agent_conn *a)
{
    size_t done = take_frames(a, buf_bytes(&a->in), buf_size(&a->in));

    if (a->closing)
        return false;
    buf_consume(&a->in, done);
    if (buf_size(&a->in) == 0)
        buf_reset(&a->in);
    agent_conn_charge_input(a);
    return true;
}

/* a is the store of a node with a proof of the job's key; requests follow. Closes a; socket and link go on elsewhere. */
static void hand_over_node(struct agent_conn *a)
{
    const struct rounds_keys *keys = &a->shell->keys;
    struct tls_link *tls = a->tls;
    _cleanup_(buf_finish) struct buf plain = a->in;
    int fd = steal_fd(&a->fd);

    a->tls = NULL;
    a->in = (struct buf){0};
    agent_conn_close(a);
    keys->adopt(keys->data, fd, tls, &plain);
}

static bool is_node_store(const struct agent_conn *a)
{
    return a->shell->keys.data && !a->shutting_down && tls_link_is_established(a->tls) &&
           tls_link_purpose(a->tls) == KEY_RELAY;
}

/* True: incomplete input of all agents is too much; logged. Agents have half of the limit, clients have the rest. */
static bool is_input_full(struct agent_conn *a)
{
    if (a->server->session_input <= a->server->limits.input_all_max / 2)
        return false;
    agent_conn_log(a, "closed: past the limit for incomplete frames and handshakes%s",
                   server_option(a->server, " (--max-input)"));
    return true;
}

/* Takes received records; false: a is closed. */
static bool agent_conn_take_records(struct agent_conn *a, const uint8_t *data, size_t n)
{
    if (a->shutting_down)
        return true; /* input is discarded */
    if (tls_link_receive(a->tls, data, n, &a->in, &a->wire) < 0) {
        agent_conn_log(a, "%s: closed", tls_link_error(a->tls));
        agent_conn_shutdown(a); /* the alert is sent first */
    }
    agent_conn_charge_input(a);
    if (!a->shutting_down && !tls_link_is_established(a->tls) && is_input_full(a)) {
        agent_conn_close(a);
        return false;
    }
    agent_conn_flush(a);
    if (is_node_store(a) && buf_size(&a->wire) == 0) {
        hand_over_node(a);
        return false;
    }
    return buf_size(&a->in) == 0 || agent_conn_take_kept(a);
}

/* Where to read to, and how much; NULL: a is closed. */
static uint8_t *agent_conn_read_buffer(struct agent_conn *a, size_t *ret_size)
{
    struct server *s = a->server;

    *ret_size = SCRATCH_SIZE;
    if (a->tls || buf_size(&a->in) == 0)
        return s->scratch;
    *ret_size = a->reader.need - buf_size(&a->in);
    uint8_t *place = buf_reserve(&a->in, *ret_size);
    agent_conn_charge_input(a);
    if (place && !is_input_full(a))
        return place;
    if (!place)
        agent_conn_log(a, "closed: out of memory for the rest of its frame");
    agent_conn_close(a);
    return NULL;
}

/* Reads once; false: a is closed, or there is nothing to read. */
static bool agent_conn_read(struct agent_conn *a)
{
    size_t size;
    uint8_t *place = agent_conn_read_buffer(a, &size);

    if (!place)
        return false;
    ssize_t n = RETRY(read(a->fd, place, size));
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        a->eof = n == 0;
        agent_conn_close(a);
        return false;
    }
    if (a->tls)
        return agent_conn_take_records(a, place, (size_t)n);
    if (place == a->server->scratch)
        return agent_conn_take(a, place, (size_t)n);
    buf_commit(&a->in, (size_t)n);
    return agent_conn_take_kept(a);
}

/* ---- turns of handshakes ---- */

static bool is_shaking_hands(const struct agent_conn *a)
{
    return a->tls && !a->shutting_down && !tls_link_is_established(a->tls);
}

/* The next part of the handshake has arrived. */
static void wait_for_handshake(struct agent_conn *a)
{
    handshake_turns_add(&a->shell->handshakes, &a->handshake, server_network_of(a->fd));
    update_agent_polling(a);
    server_want_turn(a->server);
}

static void run_handshake(struct agent_conn *a)
{
    _cleanup_(buf_finish) struct buf early = a->in;

    a->in = (struct buf){0};
    update_agent_polling(a);
    if (buf_size(&early) > 0)
        (void)agent_conn_take_records(a, buf_bytes(&early), buf_size(&early)); /* perhaps closed now */
    else
        (void)agent_conn_read(a); /* as above */
}

bool agents_wait_for_handshakes(void *shell)
{
    const struct rounds_shell *r = shell;

    return !list_is_empty(&r->handshakes.ring);
}

void agents_shake_hands(void *shell)
{
    struct rounds_shell *r = shell;
    uint64_t until_ns = uv_hrtime() + HANDSHAKE_TURN_NS;
    struct list *waiting;

    while ((waiting = handshake_turns_next(&r->handshakes))) {
        run_handshake(list_entry(waiting, struct agent_conn, handshake));
        if (uv_hrtime() >= until_ns)
            return;
    }
}

/* ---- events ---- */

static void on_agent_poll(uv_poll_t *poll, int status, int events)
{
    struct agent_conn *a = poll->data;

    if (a->closing)
        return;
    if (status < 0 && is_shaking_hands(a)) { /* nothing counts before the end of the handshake */
        agent_conn_drop_output(a);
        agent_conn_close(a);
        return;
    }
    if (status < 0) { /* broken; earlier input still counts */
        a->events = 0;
        agent_conn_drop_output(a);
        while (agent_conn_read(a))
            ;
        if (!a->closing)
            agent_conn_close(a);
        return;
    }
    if (events & UV_WRITABLE)
        agent_conn_flush(a);
    if (!(events & UV_READABLE) || a->closing || !list_is_empty(&a->handshake))
        return;
    if (is_shaking_hands(a))
        wait_for_handshake(a);
    else
        (void)agent_conn_read(a); /* every outcome is settled */
}

/* ---- the beginning ---- */

void agent_conn_adopt(void *shell, int fd, const struct conn_owner *owner, struct buf *said)
{
    struct rounds_shell *r = shell;
    struct server *s = r->server;
    struct agent_conn *a = calloc(1, sizeof(*a));
    int error = a ? 0 : -ENOMEM;

    if (error == 0 && buf_size(said) > 0 && buf_bytes(said)[0] == TLS_FIRST_BYTE)
        error = tls_link_create(&a->tls, s->tls, NULL);
    if (error == 0)
        error = uv_poll_init(s->loop, &a->poll, fd);
    if (error < 0) {
        tls_link_free(a ? a->tls : NULL);
        server_log(s, -1, "refused an agent: %s", strerror(-error));
        free(a);
        buf_finish(said);
        (void)close(fd); /* nothing was sent */
        server_peer_gone(s, fd);
        return;
    }
    tcp_liveness_tune(fd);
    a->poll.data = a;
    a->server = s;
    a->shell = r;
    a->fd = fd;
    a->owner = owner->id;
    list_init(&a->deadline.link);
    list_init(&a->unsent_link);
    list_init(&a->held_link);
    list_init(&a->handshake);
    rounds_conn_init(&a->session);
    frame_reader_init_server(&a->reader);
    server_handle_opened(s);
    list_append(&r->agents, &a->link);
    rounds_debug_conn(r, a, "opened by", true);
    start_hello_timeout(a);
    update_agent_polling(a);
    if (a->tls) {
        a->in = *said;
        *said = (struct buf){0};
        agent_conn_charge_input(a);
        if (is_input_full(a))
            agent_conn_close(a);
        else
            wait_for_handshake(a);
        return;
    }
    (void)agent_conn_take(a, buf_bytes(said), buf_size(said)); /* perhaps closed now */
    buf_finish(said);
}
