/*
 * The connection of a client.
 *
 * The happy path: the socket is readable -> a single read() into the shared scratch buffer -> every complete
 * message in the buffer is executed, replies piling up in the shared outbox -> a single write. Nothing is allocated
 * and nothing of the client is kept. Only when a message is incomplete does the rest move to p->in, and
 * only when the socket does not take all replies do the remaining replies move to p->out.
 *
 * A request of much work is executed in turns: RUN_TURN puts the peer at the end of store_shell.busy. In each turn of the
 * loop the first peer of the list has a turn, with a budget of half a millisecond. When a socket becomes readable, its
 * requests are executed at once, with a small budget: so a client with a short request is never behind clients with long
 * requests, nor behind a pipelining client.
 *
 * A client that does not read its replies: once output_max bytes of replies wait, the client's requests are not
 * executed (p->held) and the socket is not read any more, until the client has read. Such a client costs the waiting
 * bytes, and is never cut off for not reading: the client may be stopped in a debugger.
 *
 * Ways to die: a first message other than VALIDATE, a broken message, a refused request, a deadline
 * (store_shell_uv.c), end of stream, a socket error. Requests before an end of stream are executed: a
 * client may write and close. For the same reason an error in sending does not end the connection: the client may have
 * closed without reading a reply, behind messages that count. The replies are dropped, and reading ends the connection.
 */

#include "base/err.h"
#include "rendezvous/server/store_shell_uv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    IOV_MAX_BATCH = 64,
    /* Size of a write(): a reader on the same host may take megabytes at once, and the copy is made here. */
    SEND_MAX = 256 * 1024,
    /* A larger reply buffer is given back. */
    OUT_KEEP_MAX = 1 << 20,
    /* Memory of a peer with an incomplete message beyond the received bytes. The small step holds while the peer has sent
     * little, so that thousands of peers do not use up the common limit, and while all peers hold too much. */
    IN_STEP = SCRATCH_SIZE,
    IN_STEP_SMALL = 4 * 1024,
    /* Bytes of replies for a client in a turn of the loop: a client that pipelines large requests, and reads the
     * replies so fast that the socket never fills, would otherwise be the only client served. */
    TURN_OUTPUT_MAX = 256 * 1024,
    /* Cost of a client's requests at once, before the requests wait for a turn. */
    FRESH_UNITS = 256,
    /* Growth of an incomplete message that counts as progress: a large message on a slow network has
     * enough time, a message of a byte a second has not. */
    FRAME_PROGRESS = 1 << 20,
};

static void on_peer_poll(uv_poll_t *poll, int status, int events);

/* ---- accounts ---- */

/* Charges the memory of p beyond struct peer, after a change. Values waiting to be sent are charged to the
 * store's account, not here. */
static void charge_buffers(struct peer *p)
{
    size_t output = p->out.bytes.capacity + p->out.refs_capacity * sizeof(struct outbox_ref);

    input_shares_change(&p->shell->input, p->input_slot, p->charged_input, p->in.capacity);
    p->charged_input = p->in.capacity;
    p->shell->output_bytes += output;
    p->shell->output_bytes -= p->charged_output;
    p->charged_output = output;
}

static size_t output_limit(const struct store_shell *s)
{
    return s->output_bytes < s->server->limits.output_all_max ? s->server->limits.output_max : 1;
}

/* ---- polling ---- */

static void update_peer_polling(struct peer *p)
{
    uint8_t events = 0;

    if (!p->eof && !p->held && list_is_empty(&p->busy_link))
        events |= UV_READABLE;
    if (outbox_size(&p->out) > 0 || (p->held && !p->starved && list_is_empty(&p->busy_link)))
        events |= UV_WRITABLE;
    if (events == p->events)
        return;
    p->events = events;
    /* Both fail only when another handle watches the same fd, and the fd is ours. */
    if (events)
        (void)uv_poll_start(&p->poll, events, on_peer_poll);
    else
        (void)uv_poll_stop(&p->poll);
}

/* ---- sending ---- */

static void peer_drop_output(struct peer *p)
{
    p->write_failed = true;
    outbox_finish(&p->out);
    charge_buffers(p);
}

/* Cuts the list off behind SEND_MAX bytes; returns the length of the list. */
static int limit_iov(struct iovec *iov, int n)
{
    size_t room = SEND_MAX;

    for (int i = 0; i < n; i++) {
        if (iov[i].iov_len >= room) {
            iov[i].iov_len = room;
            return i + 1;
        }
        room -= iov[i].iov_len;
    }
    return n;
}

/* Writes o as far as the socket takes bytes; false: the socket is broken. */
static bool send_outbox(struct peer *p, struct outbox *o)
{
    struct iovec iov[IOV_MAX_BATCH];
    int n_iov = limit_iov(iov, outbox_iov(o, iov, IOV_MAX_BATCH));
    ssize_t n = RETRY(n_iov == 1 ? write(p->fd, iov[0].iov_base, iov[0].iov_len) : writev(p->fd, iov, n_iov));

    if (n < 0 && errno != EAGAIN)
        return false;
    if (n > 0)
        outbox_consume(o, (size_t)n);
    return true;
}

/* Sends p->out, once the socket is writable. */
static void flush_peer(struct peer *p)
{
    if (outbox_size(&p->out) == 0)
        return;
    if (!send_outbox(p, &p->out))
        peer_drop_output(p);
    else if (outbox_size(&p->out) == 0)
        outbox_finish(&p->out);
    charge_buffers(p);
}

/* Sends the shared outbox; bytes not taken by the socket move to p->out. Returns the size of the outbox
 * before. */
static size_t flush_shared(struct peer *p)
{
    struct outbox *o = &p->shell->out;
    size_t size = outbox_size(o);

    if (outbox_size(o) > 0 && (p->write_failed || !send_outbox(p, o))) {
        outbox_finish(o);
        peer_drop_output(p);
    }
    if (outbox_size(o) > 0) {
        p->out = *o;
        *o = (struct outbox){0};
        charge_buffers(p);
    } else if (o->bytes.capacity > OUT_KEEP_MAX) {
        outbox_finish(o);
    }
    return size;
}

/* ---- executing ---- */

enum run_result {
    RUN_MORE,    /* all complete messages are executed */
    RUN_FULL,    /* replies have to be read first */
    RUN_TURN,    /* the budget is used up */
    RUN_STARVED, /* the relay cannot take the request now */
    RUN_OPENING, /* the rest belongs to another service */
    RUN_BROKEN,  /* logged; the client is to be closed */
};

/* The service with the opening `byte`; NULL: `byte` is for the store. */
static const struct server_service *service_of(const struct peer *p, uint8_t byte)
{
    if (byte < WIRE_OP_COUNT)
        return NULL;
    return server_service_of(p->shell->server, p->n_greeted > 0 ? OPENING_GREETED : OPENING_FIRST, byte);
}

/* Checks the five bytes that every TCPStore client sends first, in any slices. Nothing is kept before all five
 * are right. */
static enum run_result check_greeting(struct peer *p, const uint8_t *data, size_t n, size_t *done)
{
    static const uint8_t greeting[HANDSHAKE_SIZE] = {
        WIRE_OP_VALIDATE,
        WIRE_VALIDATE_MAGIC & 0xff,
        WIRE_VALIDATE_MAGIC >> 8 & 0xff,
        WIRE_VALIDATE_MAGIC >> 16 & 0xff,
        WIRE_VALIDATE_MAGIC >> 24,
    };

    if (p->n_greeted == 0 && n > 0 && service_of(p, data[0]))
        return RUN_OPENING;
    while (p->n_greeted < HANDSHAKE_SIZE && *done < n) {
        if (data[(*done)++] != greeting[p->n_greeted++]) {
            server_log(p->shell->server, p->fd, "is not a TCPStore client of PyTorch 2.2 or newer: closed");
            return RUN_BROKEN;
        }
    }
    if (p->n_greeted == HANDSHAKE_SIZE) {
        list_unlink(&p->deadline.link);
        list_append(&p->shell->unused, &p->unused_link);
        p->greeted_ms = uv_now(p->shell->server->loop);
    }
    return RUN_MORE;
}

static enum run_result refuse_request(struct peer *p, enum wire_op op, int result)
{
    server_log(p->shell->server, p->fd, "%s in %s: closed", store_error(result), wire_op_name(op));
    return RUN_BROKEN;
}

/* The request at data: the request begun, or the next. */
static enum run_result next_request(struct peer *p, const uint8_t *data, size_t n)
{
    struct store_shell *s = p->shell;

    if (p->request_size > 0)
        return RUN_MORE;
    int r = wire_decode(&p->scanner, &s->server->limits.wire, data, n, &p->request, &p->request_size);
    if (r == WIRE_E_BAD) {
        server_log(s->server, p->fd, "sent a broken message: %s (%llu): closed", p->scanner.error,
                   (unsigned long long)p->scanner.error_value);
        return RUN_BROKEN;
    }
    return RUN_MORE;
}

/* Charges the decoding of a request, and the copy of its bytes if copied at once. */
static void spend_on_bytes(struct store_budget *budget, size_t size)
{
    uint64_t cost = 2 + (size < SCRATCH_SIZE ? size / STORE_UNIT_BYTES : 0);

    budget->units -= cost < budget->units ? cost : budget->units;
}

/* p is a client of the store; false: the place of p is for an agent. */
static bool use_store(struct peer *p)
{
    const struct admission *admission = &p->shell->server->admission;

    list_unlink(&p->unused_link);
    if (!p->for_agent || admission_is_open(admission, p->shell->server->n_peers)) {
        p->for_agent = false;
        return true;
    }
    server_log(p->shell->server, p->fd,
               "is a client of the store, and the last %u connections are kept for agents: closed; raise the "
               "limit (ulimit -n%s)",
               admission->reserved, server_option(p->shell->server, ", --max-connections"));
    return false;
}

/* Executes a request with bytes at raw, as far as the budget goes. */
static enum run_result run_request(struct peer *p, const uint8_t *raw, struct outbox *out,
                                   struct store_budget *budget)
{
    struct store_shell *s = p->shell;
    bool begun = p->begun;

    if (p->request.op != WIRE_OP_PING && !use_store(p))
        return RUN_BROKEN;
    int r = store_shell_apply(p, raw, out, budget);
    p->begun = r == STORE_MORE;
    spend_on_bytes(budget, p->request_size);
    if (r == RELAY_LATER)
        return RUN_STARVED;
    if (!begun && store_may_change_a_key(&p->request))
        s->server->n_changes++;
    if (r == STORE_MORE)
        return outbox_size(out) >= budget->output_max ? RUN_FULL : RUN_TURN;
    if (s->server->stats && r == 0) {
        store_stats_count(s->server->stats, p->request.op);
        s->n_timed++;
    }
    return r != 0 ? refuse_request(p, p->request.op, r) : RUN_MORE;
}

/* Executes messages from data + *done on, while replies have room and the budget lasts. */
static enum run_result run_messages(struct peer *p, const uint8_t *data, size_t n, size_t *done,
                                    struct outbox *out, struct store_budget *budget)
{
    enum run_result r = RUN_MORE;

    budget->output_max = output_limit(p->shell);
    while (*done < n && r == RUN_MORE) {
        if (p->request_size == 0 && service_of(p, data[*done]))
            return RUN_OPENING;
        if (outbox_size(out) >= budget->output_max)
            return RUN_FULL;
        if (budget->units == 0)
            return RUN_TURN;
        r = next_request(p, data + *done, n - *done);
        if (r == RUN_MORE && p->request_size == 0)
            return RUN_MORE; /* not complete */
        if (r == RUN_MORE)
            r = run_request(p, data + *done, out, budget);
        if (r == RUN_MORE) {
            *done += p->request_size;
            p->request_size = 0;
        }
    }
    return r;
}

static void peer_release(struct peer *p);

/* Hands the connection over to another service, with the bytes of data; p is closed. */
static void hand_over(struct peer *p, const uint8_t *data, size_t n)
{
    const struct server_service *service = service_of(p, data[0]);
    struct conn_owner owner = p->owner;
    struct buf rest = {0};
    int fd = p->fd;

    if (outbox_size(&p->out) > 0) {
        server_log(p->shell->server, fd, "sent an agent's opening with replies unread: closed");
        peer_close(p);
    } else if (buf_append(&rest, data, n) < 0) {
        server_log(p->shell->server, fd, "closed: out of memory for its opening");
        peer_close(p);
    } else {
        peer_release(p);
        service->adopt(service->self, fd, &owner, &rest);
    }
}

/* Executes the requests in data as far as possible and sends the replies. Returns bytes used up; SIZE_MAX: p is closed. */
static size_t serve_untimed(struct peer *p, const uint8_t *data, size_t n, uint64_t units)
{
    struct store_budget budget = {.units = units, .turn = STORE_TURN_UNITS};
    struct store_shell *s = p->shell;
    enum run_result r = RUN_MORE;
    size_t done = 0, n_answered = 0;

    if (p->n_greeted < HANDSHAKE_SIZE)
        r = check_greeting(p, data, n, &done);
    for (;;) {
        bool shared = outbox_size(&p->out) == 0;

        if (r == RUN_MORE)
            r = run_messages(p, data, n, &done, shared ? &s->out : &p->out, &budget);
        if (shared)
            n_answered += flush_shared(p);
        else
            charge_buffers(p);
        if (r != RUN_FULL || outbox_size(&p->out) > 0 || n_answered >= TURN_OUTPUT_MAX)
            break;
        r = RUN_MORE; /* the socket took all */
    }
    if (r == RUN_OPENING) {
        hand_over(p, data + done, n - done);
        return SIZE_MAX;
    }
    p->held = r == RUN_FULL || r == RUN_TURN || r == RUN_STARVED;
    p->starved = r == RUN_STARVED;
    if (r == RUN_TURN)
        list_append(&s->busy, &p->busy_link);
    if (r != RUN_BROKEN)
        return done;
    flush_peer(p); /* replies to requests before the bad message, if the socket takes any */
    peer_close(p);
    return SIZE_MAX;
}

/* The same, with a look at the clock before and after where requests are counted. */
static size_t serve(struct peer *p, const uint8_t *data, size_t n, uint64_t units)
{
    struct store_shell *s = p->shell;
    uint64_t began_ns = s->server->stats ? uv_hrtime() : 0;

    s->n_timed = 0;
    size_t used = serve_untimed(p, data, n, units);
    if (s->server->stats)
        store_stats_time(s->server->stats, s->n_timed, uv_hrtime() - began_ns);
    return used;
}

/* ---- receiving ---- */

/* An incomplete message has a deadline, counted from the start or from the last MiB of the message. */
static void watch_frame(struct peer *p)
{
    struct store_shell *s = p->shell;
    size_t size = buf_size(&p->in);

    if (p->n_greeted < HANDSHAKE_SIZE)
        return; /* the deadline of the greeting still runs */
    if (size == 0 || p->held)
        list_unlink(&p->deadline.link);
    else if (list_is_empty(&p->deadline.link) || size < p->frame_mark ||
             size - p->frame_mark >= FRAME_PROGRESS) {
        p->frame_mark = size;
        deadlines_set(&s->framing, &p->deadline, s->server->limits.frame_ms);
    }
}

/* The relay has a reply for p under way, other than the end of a wait. */
static bool is_owed(const struct peer *p)
{
    return p->shell->relay && relay_client_is_owed(&p->client.relayed);
}

/* After a change of p: decides whether p ends, and sets the events to wait for. */
static void peer_update(struct peer *p)
{
    if (p->eof && !p->held && outbox_size(&p->out) == 0 && !is_owed(p)) {
        peer_close(p);
        return;
    }
    watch_frame(p);
    update_peer_polling(p);
}

/* Executes the requests in p->in; false: p is closed. */
static bool serve_buffered(struct peer *p, uint64_t units)
{
    size_t used = serve(p, buf_bytes(&p->in), buf_size(&p->in), units);

    if (used == SIZE_MAX)
        return false;
    if (used > 0)
        list_unlink(&p->deadline.link); /* the incomplete message is now another */
    buf_consume(&p->in, used);
    if (buf_size(&p->in) == 0)
        buf_reset(&p->in);
    charge_buffers(p);
    return true;
}

static void rebase_span(struct wire_span *span, const uint8_t *from, const uint8_t *to)
{
    if (span->data)
        span->data = to + (span->data - from);
}

/* The bytes of a begun request were copied. */
static void rebase_request(struct wire_request *request, const uint8_t *from, const uint8_t *to)
{
    rebase_span(&request->key, from, to);
    rebase_span(&request->value, from, to);
    rebase_span(&request->desired, from, to);
    rebase_span(&request->items, from, to);
}

/* Executes the requests in the scratch buffer and keeps the rest; false: p is closed. */
static bool serve_scratch(struct peer *p, size_t n)
{
    const uint8_t *data = p->shell->server->scratch;
    size_t used = serve(p, data, n, FRESH_UNITS);

    if (used == SIZE_MAX)
        return false;
    if (used == n)
        return true;
    if (buf_append(&p->in, data + used, n - used) < 0) {
        server_log(p->shell->server, p->fd, "closed: out of memory for its message");
        peer_close(p);
        return false;
    }
    if (p->request_size > 0)
        rebase_request(&p->request, data + used, buf_bytes(&p->in));
    charge_buffers(p);
    return true;
}

/* The largest holder in the network with the largest sum; some client has to hold bytes. */
static struct peer *largest_holder(struct store_shell *s)
{
    unsigned slot = input_shares_largest(&s->input);
    struct peer *largest = NULL;

    list_for_each_entry(struct peer, p, &s->peers, link)
    {
        if (p->input_slot == slot && (!largest || p->charged_input > largest->charged_input))
            largest = p;
    }
    return largest;
}

/* Incomplete messages of all clients hold too much, and p wants more: closes the largest holder. False: the largest holder
 * is p. */
static bool cut_largest_holder(struct peer *p)
{
    struct store_shell *s = p->shell;
    struct peer *largest = largest_holder(s);

    server_log(s->server, largest->fd,
               "closed: incomplete messages of all clients hold %llu bytes%s, its own %zu",
               (unsigned long long)s->input.total, server_option(s->server, " (--max-input)"),
               largest->charged_input);
    peer_close(largest);
    return largest != p;
}

/* Where to read to: behind the incomplete message, or the scratch buffer. NULL: p is closed. */
static uint8_t *peer_read_buffer(struct peer *p, size_t *ret_size)
{
    struct store_shell *s = p->shell;

    bool tight = s->input.total + s->server->session_input > s->server->limits.input_all_max;
    bool small = buf_size(&p->in) < IN_STEP_SMALL; /* perhaps until the deadline */

    /* Bytes read may have to be kept, too: when the client does not read its replies. */
    *ret_size = tight || (small && buf_size(&p->in) > 0) ? IN_STEP_SMALL : IN_STEP;
    if (buf_size(&p->in) == 0)
        return s->server->scratch;
    if (buf_size(&p->in) > IN_STEP && tight && !cut_largest_holder(p))
        return NULL;
    uint8_t *place = buf_reserve(&p->in, *ret_size);
    if (!place) {
        server_log(s->server, p->fd, "closed: out of memory for its message of %llu bytes",
                   (unsigned long long)p->scanner.need);
        peer_close(p);
    }
    return place;
}

/* Reads once; false when p is closed or has nothing to read. */
static bool peer_read(struct peer *p)
{
    size_t size;
    uint8_t *place = peer_read_buffer(p, &size);

    if (!place)
        return false;
    ssize_t n = RETRY(read(p->fd, place, size));
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        p->eof = true;
        if (n < 0)
            peer_drop_output(p); /* a reset: the client does not read any more */
        peer_update(p);
        return false;
    }
    if (place == p->shell->server->scratch) {
        if (!serve_scratch(p, (size_t)n))
            return false;
    } else {
        buf_commit(&p->in, (size_t)n);
        if (!serve_buffered(p, FRESH_UNITS))
            return false;
    }
    peer_update(p);
    return true;
}

bool peer_catch_up(struct peer *p)
{
    uint64_t deadline_ms = p->deadline.at_ms;

    if (p->shell->server->draining)
        return false;   /* nothing more is executed */
    (void)peer_read(p); /* settles every outcome */
    return p->closing || list_is_empty(&p->deadline.link) || p->deadline.at_ms != deadline_ms;
}

void peer_continue(struct peer *p)
{
    bool waits_for_turn = !list_is_empty(&p->busy_link);

    if (p->held && !p->starved && !waits_for_turn && outbox_size(&p->out) < output_limit(p->shell) &&
        !p->shell->server->draining) {
        p->held = false;
        if (!serve_buffered(p, FRESH_UNITS))
            return;
    }
    peer_update(p);
}

/* The next piece of a long message is read in a turn as well: hundreds of clients with long messages would otherwise have
 * a piece each in every turn of the loop. True: p waits for its turn. */
static bool read_in_turn(struct peer *p)
{
    if (buf_size(&p->in) < SCRATCH_SIZE)
        return false;
    list_append(&p->shell->busy, &p->busy_link);
    update_peer_polling(p);
    return true;
}

void peers_run_turn(struct store_shell *s)
{
    struct peer *p = list_first(&s->busy, struct peer, busy_link);

    if (!p)
        return;
    list_unlink(&p->busy_link);
    if (p->held) {
        p->held = false;
        if (serve_buffered(p, STORE_TURN_UNITS))
            peer_update(p);
    } else if (!peer_read(p) && !p->closing) {
        if (p->reset)
            peer_close(p); /* as in read_rest() */
        else
            peer_update(p);
    }
}

/* ---- releases ---- */

/* Sends bytes that come later than their request. False: out of memory. */
static bool send_late(struct peer *p, const void *bytes, size_t n)
{
    bool shared = outbox_size(&p->out) == 0;
    struct outbox *out = shared ? &p->shell->out : &p->out;

    if (!p->write_failed && buf_append(&out->bytes, bytes, n) < 0)
        return false;
    if (shared)
        (void)flush_shared(p); /* how much there was is known */
    else
        flush_peer(p);
    return true;
}

void peer_send_wait_stop(struct peer *p)
{
    static const uint8_t stop = WIRE_WAIT_STOP;

    if (send_late(p, &stop, 1)) {
        update_peer_polling(p);
        return;
    }
    server_log(p->shell->server, p->fd, "closed: out of memory for its reply");
    peer_close(p);
}

/* ---- events ---- */

/* The socket broke (a reset): earlier input still counts, and read() returns the end behind the input.
 * A piece per turn, between the requests of other clients: the kernel may hold megabytes. */
static void read_rest(struct peer *p)
{
    peer_drop_output(p);
    if (p->held && list_is_empty(&p->busy_link)) {
        p->held = false;
        if (!serve_buffered(p, FRESH_UNITS))
            return;
    }
    p->reset = true;
    if (p->held || read_in_turn(p))
        return; /* the turns of p come first; polling then reports the reset again */
    if (!peer_read(p) && !p->closing)
        peer_close(p); /* nothing to read, and nothing would wake us */
}

static void on_peer_poll(uv_poll_t *poll, int status, int events)
{
    struct peer *p = poll->data;
    struct store_shell *s = p->shell;

    store_shell_settle(p);
    if (p->closing)
        return;
    if (status < 0) {
        p->events = 0; /* libuv stopped the handle */
        read_rest(p);
    } else {
        if (events & UV_WRITABLE) {
            flush_peer(p);
            peer_continue(p);
        }
        if (events & UV_READABLE && !p->closing && p->events & UV_READABLE && !read_in_turn(p))
            (void)peer_read(p); /* settles every outcome */
    }
    store_shell_work_off(s);
}

void peer_take_reply(struct peer *p)
{
    struct relay_client *c = &p->client.relayed;
    struct store_shell *s = p->shell;
    int failure = c->failure;

    p->starved = false; /* a request that had to wait may be given again */
    if (failure == 0 && s->output_bytes + buf_size(&c->reply) > s->server->limits.output_all_max)
        failure = -ENOBUFS;
    if (failure == 0 && buf_size(&c->reply) > 0 && !send_late(p, buf_bytes(&c->reply), buf_size(&c->reply)))
        failure = -ENOMEM;
    buf_clear(&c->reply, RELAY_KEEP_MAX);
    if (failure == 0) {
        peer_continue(p);
        return;
    }
    server_log(s->server, p->fd, "%s in %s: closed", store_error(failure), wire_op_name(c->failed_op));
    peer_close(p);
}

/* ---- life ---- */

int peer_create(void *shell, int fd, const struct conn_owner *owner, bool for_agent)
{
    struct store_shell *s = shell;
    struct peer *p = server_open_conn(s->server, fd, sizeof(*p));

    if (!p)
        return -errno;
    p->shell = s;
    p->fd = fd;
    p->owner = *owner;
    p->for_agent = for_agent;
    p->input_slot = input_shares_slot(s->server->quota.seed, server_network_of(fd));
    list_init(&p->deadline.link);
    list_init(&p->busy_link);
    list_init(&p->unused_link);
    store_shell_join(p);
    list_append(&s->peers, &p->link);
    s->server->n_peers++;
    deadlines_set(&s->greeting, &p->deadline, s->server->limits.handshake_ms);
    update_peer_polling(p);
    return 0;
}

/* Everything but the socket. */
static void peer_release(struct peer *p)
{
    struct store_shell *s = p->shell;

    assert(!p->closing);
    p->closing = true;
    store_shell_leave(p);
    outbox_finish(&p->out);
    buf_finish(&p->in);
    charge_buffers(p);
    list_unlink(&p->link);
    list_unlink(&p->deadline.link);
    list_unlink(&p->busy_link);
    list_unlink(&p->unused_link);
    server_close_conn(s->server, &p->poll);
}

void peer_close(struct peer *p)
{
    struct store_shell *s = p->shell;

    peer_release(p);
    (void)close(p->fd); /* released by uv_close() above */
    server_peer_gone(s->server, p->fd);
}

/* False: p stays. */
static bool close_for_room(struct peer *p, enum admission_kind kind, uint64_t since_ms,
                           enum admission_place place)
{
    struct store_shell *s = p->shell;
    uint64_t age_ms = uv_now(s->server->loop) - since_ms;

    if (!admission_may_close(&s->server->admission, kind, age_ms, place))
        return false;
    server_log(s->server, p->fd, "has %s for %.3g s while connections are used up: closed",
               kind == ADMISSION_UNUSED ? "requested nothing" : "sent no greeting", age_ms / 1000.0);
    peer_close(p);
    return true;
}

bool peers_make_room(void *shell, enum admission_place place)
{
    struct store_shell *s = shell;
    struct peer *p = list_first(&s->unused, struct peer, unused_link);

    if (p && close_for_room(p, ADMISSION_UNUSED, p->greeted_ms, place))
        return true;
    p = list_first(&s->greeting.list, struct peer, deadline.link);
    return p &&
           close_for_room(p, ADMISSION_SILENT, p->deadline.at_ms - s->server->limits.handshake_ms, place);
}

void peer_drain(struct peer *p)
{
    p->eof = true;
    p->held = false;
    list_unlink(&p->busy_link);
    peer_update(p);
}
