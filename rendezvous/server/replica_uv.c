/*
 *   a crund that follows -> connects to the leader, proves the key of the purpose `replica`, sends its id
 *   the leader           -> sends one message without effect, and makes the first one its backup: stores that begin from now on are there, too, and those that
 *                           are there already are copied to it, one after another (job_stores_uv.c)
 *
 * The others stay connected, and one of them becomes the backup when it is lost. A store that has lost its backup goes on alone until
 * the next one has a copy (rounds_keys_uv.c).
 *
 * A backup that leaves an entry unconfirmed, or reads nothing of what is to be sent, for PATIENCE_MS is lost: with a state under
 * way its job would wait for it. A host that is lost is found by SILENCE_MS when nothing is sent. The backup takes part as long as the same crund leads; when the
 * connection ends it keeps its copies until it leads itself, or has followed the next leader for KEEP_COPIES_MS: that one may
 * have ended before it saved anything.
 */

#include "rendezvous/server/replica_uv.h"

#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/tls_openssl.h"
#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/server/job_stores_uv.h"
#include "rendezvous/relay/replica_redial.h"
#include "rendezvous/relay/replica_stream.h"
#include "rendezvous/server/rounds_etcd_uv.h"
#include "rendezvous/server/rounds_keys_uv.h"
#include "rendezvous/server/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/server/tcp_liveness_os.h"

enum {
    TICK_MS = 200,
    PATIENCE_MS = 1000,
    HELLO_MS = 5000,
    SILENCE_MS = 6000,
    KEEP_COPIES_MS = 5000,
    ROOM = 64 * 1024,
    CONNS_MAX = 64,
    OUTPUT_MAX = 64 << 20,
    STATE_OUTPUT_MAX = 256 * 1024
};

struct replica_conn {
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    struct replica_shell *shell;
    struct list link; /* in replica_shell.followers; unlinked: it is the one to the leader */
    struct tls_link *tls;
    struct buf in, out, wire; /* inside TLS; of `wire` is written what is sent */
    uint64_t id;              /* of a follower; 0: before its hello */
    uint64_t since_ms;
    int fd; /* of a follower: counted as a peer; else -1 */
    bool is_writing, is_closing;
    bool is_connected, has_served, is_broken; /* to the leader: see struct replica_attempt */
    bool has_aged_copies;                     /* to the leader: copies from before are not of its stream */
};

struct replica_shell {
    struct server *server;
    uint64_t id;
    struct list followers;
    unsigned n_followers;
    struct replica_conn *backup; /* NULL: none */
    struct replica_conn *leader; /* the connection to it; NULL: none */
    char address[ETCD_ADDRESS_SIZE];
    struct replica_redial redial;
    uv_timer_t timer;
    uint64_t n_sent, n_confirmed; /* entries */
    uint64_t moved_ms; /* since when the backup has confirmed and read nothing, while there is something */
    bool is_stopping;
    bool is_behind;          /* something for the backup could not be queued */
    bool has_logged_version; /* of a follower's stream, since one was accepted */
    uint8_t scratch[ROOM];
};

/* ---- end ---- */

static void on_replica_conn_closed(uv_handle_t *handle)
{
    struct replica_conn *c = handle->data;
    struct server *s = c->shell->server;

    free(c);
    server_handle_closed(s);
}

static void note_leader_lost(struct replica_shell *h, const struct replica_conn *c)
{
    uint64_t now_ms = uv_now(h->server->loop);
    struct replica_attempt attempt = {.is_connected = c->is_connected,
                                      .has_served = c->has_served,
                                      .is_broken = c->is_broken,
                                      .lasted_ms = now_ms - c->since_ms};

    h->leader = NULL;
    if (!replica_redial_ended(&h->redial, &attempt, now_ms))
        return;
    job_stores_age_copies(h->server->job_stores); /* it leads without this crund, and sends nothing */
    rounds_log(
        h->server->rounds,
        "the crund at %s, which leads, refuses this one as a backup of keys: start both with the same version of crund "
        "and the same secret; it is asked again at times",
        h->address);
}

static void close_conn(struct replica_conn *c)
{
    struct replica_shell *h = c->shell;
    bool was_backup = h->backup == c;

    if (c->is_closing)
        return;
    c->is_closing = true;
    if (h->leader == c)
        note_leader_lost(h, c);
    if (was_backup)
        h->backup = NULL;
    if (!list_is_empty(&c->link))
        h->n_followers--;
    list_unlink(&c->link);
    tls_link_free(c->tls);
    buf_finish(&c->in);
    buf_finish(&c->out);
    if (!c->is_writing)
        buf_finish(&c->wire);
    uv_close((uv_handle_t *)&c->tcp, on_replica_conn_closed);
    if (c->fd >= 0)
        server_peer_gone(h->server, c->fd);
    if (was_backup && !h->is_stopping)
        rounds_keys_lose_backup(h->server->rounds);
}

/* ---- sending ---- */

static void flush_conn(struct replica_conn *c);

static void on_replica_written(uv_write_t *write, int status)
{
    struct replica_conn *c = write->data;

    c->is_writing = false;
    c->shell->moved_ms = uv_now(c->shell->server->loop);
    buf_consume(&c->wire, buf_size(&c->wire));
    if (c->is_closing)
        buf_finish(&c->wire);
    else if (status < 0)
        close_conn(c);
    else
        flush_conn(c);
    if (!c->is_closing)
        server_want_turn(c->shell->server); /* there may be room for more of a state */
}

/* 0 or -errno: the connection is broken. */
static int write_wire(struct replica_conn *c)
{
    uv_buf_t bytes = uv_buf_init((char *)buf_bytes(&c->wire), (unsigned)buf_size(&c->wire));
    int n = buf_size(&c->wire) > 0 ? uv_try_write((uv_stream_t *)&c->tcp, &bytes, 1) : 0;

    if (n < 0 && n != UV_EAGAIN)
        return n;
    if (n > 0)
        buf_consume(&c->wire, (size_t)n);
    if (buf_size(&c->wire) == 0)
        return 0;
    bytes = uv_buf_init((char *)buf_bytes(&c->wire), (unsigned)buf_size(&c->wire));
    n = uv_write(&c->write, (uv_stream_t *)&c->tcp, &bytes, 1, on_replica_written);
    c->is_writing = n == 0;
    if (c->shell->n_sent == c->shell->n_confirmed)
        c->shell->moved_ms = uv_now(c->shell->server->loop); /* nothing was under way */
    return n;
}

static void flush_conn(struct replica_conn *c)
{
    int r = 0;

    if (c->is_closing || c->is_writing)
        return;
    if (buf_size(&c->out) > 0 && tls_link_is_established(c->tls)) {
        r = tls_link_send(c->tls, buf_bytes(&c->out), buf_size(&c->out), &c->wire);
        buf_consume(&c->out, buf_size(&c->out));
    }
    if (r == 0)
        r = write_wire(c);
    if (r < 0)
        close_conn(c);
}

/* ---- the crund that serves ---- */

static void tick_now(struct replica_shell *h)
{
    (void)uv_timer_start(&h->timer, h->timer.timer_cb, 0, TICK_MS); /* cannot fail: it has a callback */
}

/* The newest one: an older connection may be one to a host that is lost, or that was started again since. */
static void choose_backup(struct replica_shell *h)
{
    h->n_sent = h->n_confirmed = h->moved_ms = 0;
    h->is_behind = false;
    h->backup = NULL;
    list_for_each(i, &h->followers)
    {
        struct replica_conn *c = list_entry(i, struct replica_conn, link);

        if (c->id != 0 && !c->is_closing)
            h->backup = c;
    }
    if (h->backup)
        rounds_log(h->server->rounds, "another crund is the backup: keys of jobs will be there, too");
}

uint64_t replica_shell_backup(const struct replica_shell *h)
{
    return h && h->backup ? h->backup->id : 0;
}

/* What could not be queued is missed there: it is not the backup any more, in a turn of its own. */
static bool note_queued(struct replica_shell *h, int r)
{
    struct replica_conn *c = h->backup;

    if (r == 0 && buf_size(&c->out) <= OUTPUT_MAX)
        return true;
    h->is_behind = true;
    tick_now(h);
    return false;
}

bool replica_shell_send_begin(struct replica_shell *h, uint64_t number, const struct replica_begin *begin)
{
    return h->backup && note_queued(h, replica_put_begin(&h->backup->out, number, begin));
}

bool replica_shell_send_state(struct replica_shell *h, uint64_t number, struct wire_span piece)
{
    return h->backup && note_queued(h, replica_put_state(&h->backup->out, number, piece));
}

bool replica_shell_has_room(const struct replica_shell *h)
{
    const struct replica_conn *c = h->backup;

    return c && !c->is_writing && buf_size(&c->out) + buf_size(&c->wire) < STATE_OUTPUT_MAX;
}

void replica_shell_send_entry(struct replica_shell *h, uint64_t number, struct wire_span entry)
{
    if (!h->backup)
        return;
    if (h->n_sent++ == h->n_confirmed)
        h->moved_ms = uv_now(h->server->loop);
    (void)note_queued(h, replica_put_entry(&h->backup->out, number, entry)); /* it is lost otherwise */
}

void replica_shell_send_end(struct replica_shell *h, uint64_t number, uint64_t n_unconfirmed)
{
    h->n_confirmed += n_unconfirmed; /* nothing waits for these */
    if (h->backup)
        (void)note_queued(h, replica_put_end(&h->backup->out, number)); /* as above */
}

void replica_shell_flush(struct replica_shell *h)
{
    if (h && h->backup)
        flush_conn(h->backup);
}

static int take_confirm(struct replica_conn *c, const struct replica_message *m)
{
    struct replica_shell *h = c->shell;

    if (m->kind != REPLICA_CONFIRM)
        return -EPROTO;
    if (h->backup == c) {
        h->n_confirmed += job_stores_confirm(h->server->job_stores, m->store, m->n);
        h->moved_ms = uv_now(h->server->loop);
    }
    return 0;
}

/* A message without effect, which shows that this crund leads; see age_copies(). */
static int announce(struct replica_conn *c)
{
    int r = replica_put_end(&c->out, 0);

    if (r == 0)
        flush_conn(c);
    return r;
}

void replica_shell_lead(struct replica_shell *h)
{
    list_for_each_safe(i, &h->followers)
    {
        struct replica_conn *c = list_entry(i, struct replica_conn, link);

        if (c->id != 0 && announce(c) < 0)
            close_conn(c);
    }
}

static int take_follower_hello(struct replica_conn *c)
{
    uint64_t id;

    if (buf_size(&c->in) < REPLICA_HELLO_SIZE)
        return 0;
    int r = replica_decode_hello(buf_bytes(&c->in), &id);
    buf_consume(&c->in, REPLICA_HELLO_SIZE);
    if (r < 0)
        return r;
    c->id = id;
    c->shell->has_logged_version = false;
    if (!c->shell->backup)
        choose_backup(c->shell);
    return rounds_shell_leads(c->shell->server->rounds) ? announce(c) : 0;
}

/* ---- the backup ---- */

static int take_order(struct replica_conn *c, const struct replica_message *m)
{
    struct job_stores *j = c->shell->server->job_stores;

    switch (m->kind) {
    case REPLICA_BEGIN:
    case REPLICA_COPY:
        return job_stores_copy_begin(j, m->store, &m->begin);
    case REPLICA_STATE:
        return job_stores_copy_state(j, m->store, m->entry);
    case REPLICA_ENTRY:
        return job_stores_copy_entry(j, m->store, m->entry);
    case REPLICA_END:
        job_stores_copy_end(j, m->store);
        return 0;
    case REPLICA_CONFIRM:
    case REPLICA_MESSAGE_KIND_COUNT:
        break;
    }
    return -EPROTO;
}

void replica_shell_confirm(struct replica_shell *h, uint64_t number, uint64_t n)
{
    if (!h->leader || !h->leader->has_aged_copies) /* it is a number of the stream before */
        return;
    if (replica_put_confirm(&h->leader->out, number, n) == 0)
        flush_conn(h->leader);
    else
        close_conn(h->leader);
}

void replica_shell_leave(struct replica_shell *h)
{
    if (h->leader)
        close_conn(h->leader);
}

/* ---- receiving ---- */

/* Only a crund that leads sends anything, and it does so at once. One that does not, but was started again at the address of the one
 * that led, leaves the copies as good as they are: this crund is to lead with them. */
static void age_copies(struct replica_conn *c)
{
    if (c->has_aged_copies)
        return;
    job_stores_age_copies(c->shell->server->job_stores);
    c->has_aged_copies = true;
    c->since_ms = uv_now(c->shell->server->loop); /* KEEP_COPIES_MS is of a crund that leads */
}

static int take_messages(struct replica_conn *c)
{
    struct replica_shell *h = c->shell;
    bool is_follower = c->fd >= 0;
    size_t size = 1;

    if (!is_follower)
        age_copies(c);
    int r = is_follower && c->id == 0 ? take_follower_hello(c) : 0;

    while (r == 0 && size > 0 && !c->is_closing && (!is_follower || c->id != 0)) {
        struct replica_message m;

        r = replica_decode(buf_bytes(&c->in), buf_size(&c->in), &m, &size);
        if (r == 0 && size > 0)
            r = is_follower ? take_confirm(c, &m) : take_order(c, &m);
        c->has_served |= r == 0 && size > 0;
        c->is_broken |= r == -EPROTO;
        if (r == 0 && !c->is_closing)
            buf_consume(&c->in, size);
    }
    if (r == 0 && !is_follower && !c->is_closing)
        job_stores_confirm_copies(h->server->job_stores);
    server_work_off(h->server);
    return r;
}

/* Refusals of followers, and of the leader, are logged once, however often they come. */
static void log_conn_end(struct replica_conn *c, int r)
{
    struct replica_shell *h = c->shell;
    bool is_other_version = c->fd >= 0 && c->id == 0 && r == -EPROTO;
    char from[64];

    if (is_other_version && !h->has_logged_version) {
        server_format_peer(c->fd, from, sizeof(from));
        rounds_log(h->server->rounds,
                   "%s is a crund of another version: it cannot have the keys of jobs, too", from);
    } else if (!is_other_version && (c->fd >= 0 || h->redial.n_refused < REPLICA_REDIAL_LOGGED)) {
        server_log(h->server, NULL, "the connection to another crund for keys of jobs has ended: %s",
                   tls_link_error(c->tls)[0] ? tls_link_error(c->tls) : strerror(-r));
    }
    h->has_logged_version |= is_other_version;
}

static void take_records(struct replica_conn *c, const uint8_t *bytes, size_t n)
{
    int r = tls_link_receive(c->tls, bytes, n, &c->in, &c->wire);

    if (r == 0 && tls_link_is_finished(c->tls))
        r = -ECONNRESET;
    if (r == 0 && buf_size(&c->in) > 0)
        r = take_messages(c);
    if (c->is_closing)
        return;
    if (r < 0) {
        log_conn_end(c, r);
        close_conn(c);
        return;
    }
    flush_conn(c);
}

static void on_replica_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    struct replica_conn *c = handle->data;

    *ret = uv_buf_init((char *)c->shell->scratch, ROOM);
}

static void on_replica_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *room)
{
    struct replica_conn *c = stream->data;

    if (c->is_closing || n == 0)
        return;
    if (n < 0)
        close_conn(c);
    else
        take_records(c, (const uint8_t *)room->base, (size_t)n);
}

/* ---- connections ---- */

static void tune_conn(struct replica_conn *c)
{
    uv_os_fd_t fd;

    (void)uv_tcp_nodelay(&c->tcp, 1); /* else it is slower */
    if (uv_fileno((const uv_handle_t *)&c->tcp, &fd) == 0)
        tcp_liveness_limit(fd, SILENCE_MS);
}

static struct replica_conn *create_conn(struct replica_shell *h)
{
    struct replica_conn *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    (void)uv_tcp_init(h->server->loop, &c->tcp); /* cannot fail without a socket */
    c->tcp.data = c->connect.data = c->write.data = c;
    c->shell = h;
    c->fd = -1;
    c->since_ms = uv_now(h->server->loop);
    list_init(&c->link);
    server_handle_opened(h->server);
    return c;
}

void replica_shell_adopt(struct replica_shell *h, int fd, struct tls_link *tls, const struct buf *plain)
{
    struct replica_conn *c = h->n_followers < CONNS_MAX ? create_conn(h) : NULL;
    int r = c ? uv_tcp_open(&c->tcp, fd) : -ENOMEM;

    if (r < 0) {
        if (c)
            uv_close((uv_handle_t *)&c->tcp, on_replica_conn_closed);
        tls_link_free(tls);
        (void)close(fd); /* it comes again */
        return;
    }
    c->tls = tls;
    c->fd = fd;
    h->server->n_peers++;
    h->n_followers++;
    list_append(&h->followers, &c->link);
    tune_conn(c);
    r = uv_read_start((uv_stream_t *)&c->tcp, on_replica_room, on_replica_read);
    if (r == 0)
        r = buf_append(&c->in, buf_bytes(plain), buf_size(plain));
    if (r == 0)
        r = take_messages(c);
    if (r < 0) {
        log_conn_end(c, r);
        close_conn(c);
    }
}

static void on_leader_connected(uv_connect_t *connect, int status)
{
    struct replica_conn *c = connect->data;

    if (status == UV_ECANCELED || c->is_closing)
        return;
    tune_conn(c);
    if (status == 0)
        status = uv_read_start((uv_stream_t *)&c->tcp, on_replica_room, on_replica_read);
    if (status == 0)
        status = replica_put_hello(&c->out, c->shell->id);
    if (status < 0) {
        close_conn(c);
        return;
    }
    c->is_connected = true;
    c->since_ms = uv_now(connect->handle->loop);
    take_records(c, NULL, 0);
}

/* The context proves the key of all jobs. */
static struct tls_context *make_context(struct replica_shell *h)
{
    const struct server_security *security = &h->server->security;
    struct tls_context *ret = NULL;
    struct secret_key key;
    char why[TLS_ERROR_SIZE];

    if (!security->find_key || security->find_key(security->data, KEY_REPLICA, "", &key) != 1)
        return NULL;
    int r = tls_context_client(&ret, KEY_REPLICA, "", &key, why);
    key_erase(&key, sizeof(key));
    return r < 0 ? NULL : ret;
}

static void dial_leader(struct replica_shell *h)
{
    struct sockaddr_storage to = {0};
    struct tls_context *context = rounds_etcd_parse_address(h->address, &to) ? make_context(h) : NULL;
    struct replica_conn *c = context ? create_conn(h) : NULL;

    if (c) {
        h->leader = c;
        if (tls_link_create(&c->tls, context) < 0 ||
            uv_tcp_connect(&c->connect, &c->tcp, (struct sockaddr *)&to, on_leader_connected) < 0)
            close_conn(c); /* another attempt follows */
    }
    tls_context_free(context);
}

void replica_shell_follow(struct replica_shell *h, const char *address, bool leads)
{
    if (!h || h->is_stopping)
        return;
    if (h->leader && (leads || (address[0] != '\0' && strcmp(h->address, address) != 0)))
        close_conn(h->leader);
    if (strcmp(h->address, address) != 0)
        replica_redial_reset(&h->redial);
    if (!leads && strcmp(h->address, address) != 0)
        tick_now(h);
    (void)snprintf(h->address, sizeof(h->address), "%s", leads ? "" : address);
}

bool replica_shell_defers(const struct replica_shell *h)
{
    return h && !job_stores_have_keys(h->server->job_stores);
}

/* ---- time ---- */

static bool is_backup_stuck(const struct replica_shell *h, uint64_t now_ms)
{
    bool is_waiting = h->backup->is_writing || h->n_sent > h->n_confirmed;

    return h->is_behind || (is_waiting && now_ms - h->moved_ms >= PATIENCE_MS);
}

static void on_replica_tick(uv_timer_t *timer)
{
    struct replica_shell *h = timer->data;
    uint64_t now_ms = uv_now(timer->loop);

    replica_shell_flush(h);
    if (h->backup && is_backup_stuck(h, now_ms)) {
        server_log(h->server, NULL, "the crund that has the keys of jobs, too, does not confirm them");
        close_conn(h->backup);
    }
    list_for_each_safe(i, &h->followers)
    {
        struct replica_conn *c = list_entry(i, struct replica_conn, link);

        if (c->id == 0 && now_ms - c->since_ms >= HELLO_MS)
            close_conn(c);
    }
    if (!h->leader && h->address[0] != '\0' && now_ms >= h->redial.due_ms)
        dial_leader(h);
    else if (h->leader && !tls_link_is_established(h->leader->tls) &&
             now_ms - h->leader->since_ms >= HELLO_MS)
        close_conn(h->leader);
    else if (h->leader && h->leader->has_aged_copies && now_ms - h->leader->since_ms >= KEEP_COPIES_MS)
        job_stores_drop_copies(h->server->job_stores);
    if (!h->backup)
        choose_backup(h);
    if (h->backup)
        job_stores_want_copies(h->server->job_stores);
}

/* ---- life ---- */

int replica_shell_create(struct replica_shell **ret, struct server *s, uint64_t id)
{
    struct replica_shell *h = calloc(1, sizeof(*h));

    if (!h)
        return -ENOMEM;
    h->server = s;
    h->id = id;
    list_init(&h->followers);
    (void)uv_timer_init(s->loop, &h->timer); /* cannot fail, and the next only without a callback */
    (void)uv_timer_start(&h->timer, on_replica_tick, TICK_MS, TICK_MS);
    h->timer.data = h;
    server_handle_opened(s);
    *ret = h;
    return 0;
}

static void on_tick_closed(uv_handle_t *handle)
{
    struct replica_shell *h = handle->data;

    server_handle_closed(h->server);
}

void replica_shell_stop(struct replica_shell *h)
{
    if (!h)
        return;
    h->is_stopping = true;
    if (h->leader)
        close_conn(h->leader);
    while (!list_is_empty(&h->followers))
        close_conn(list_entry(h->followers.next, struct replica_conn, link));
    uv_close((uv_handle_t *)&h->timer, on_tick_closed);
}

void replica_shell_destroy(struct replica_shell *h)
{
    free(h);
}
