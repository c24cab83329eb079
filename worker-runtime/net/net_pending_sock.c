/*
 * Connections that were accepted and have not sent their whole hello yet (pending connections).
 *
 * A connection is used once its hello has the token; until then it holds one of a few slots. Any process that reaches the
 * listener can connect, so the slots must not be a way to keep ranks out:
 *
 *   - No more connections are accepted than there are slots: the rest wait in the listener's backlog, where the kernel
 *     keeps them and what they send.
 *   - A slot is read before it is given to another connection, and only one that has been silent for EVICT_MS is. A rank
 *     that loses its slot nevertheless, because its hello took longer, connects again (net_connect_sock.c).
 *   - A connection without the token gets no answer. One without the job's key, where there is one, is not kept.
 */

#include "worker-runtime/net/net_impl_sock.h"

#include "base/cleanup.h"
#include "base/random_os.h"
#include "proto/wait_sock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SLOTS_MIN = 64,
    SLOTS_MAX = 1024,
    HELLO_MS = 5000, /* in which the whole hello has to come */
    EVICT_MS = 200,  /* in which no other connection can take the slot: a round trip and a slow machine */
};

bool net_pending_init(struct net *n)
{
    n->n_pending = n->world_size < SLOTS_MAX - SLOTS_MIN ? SLOTS_MIN + n->world_size : SLOTS_MAX;
    n->pending = calloc((size_t)n->n_pending, sizeof(*n->pending));
    for (int i = 0; n->pending && i < n->n_pending; i++)
        n->pending[i].fd = -1;
    return n->pending;
}

static void pending_drop(struct net_pending *p)
{
    cleanup_close(&p->fd); /* nothing of ours is on its way */
    p->fd = -1;
}

void net_pending_finish(struct net *n)
{
    for (int i = 0; n->pending && i < n->n_pending; i++)
        pending_drop(&n->pending[i]);
    free(n->pending);
}

/* Links of a group are made while it is formed, so its number may be unknown here yet. All else comes when every member has
 * it: one that does not know the number has left. */
static bool has_left_group(const struct net *n, const struct net_hello *hello)
{
    return (hello->purpose == NET_MESSAGES || hello->purpose == NET_PRESENCE) &&
           !net_find_group(n, hello->group);
}

static bool is_for_us(const struct net *n, const struct net_hello *hello)
{
    return hello->to == (uint32_t)n->rank && net_bytes_equal(hello->token, n->token, NET_TOKEN_HALF) &&
           hello->keyed == n->key->is_set && hello->generation == n->key->generation;
}

static enum net_answer answer_to(struct net *n, const struct net_hello *hello)
{
    if (n->key->encrypts != (hello->cipher != SEAL_CIPHER_NONE)) {
        n->differs = (int)hello->from;
        return NET_ANSWER_DIFFERS;
    }
    return has_left_group(n, hello) ? NET_ANSWER_LEFT : NET_ANSWER_STAYS;
}

/* The answer with this rank's proof; the other rank's proof has to follow. False: the connection is of no use. */
static bool answer_with_proof(const struct net *n, struct net_pending *p, enum net_answer which)
{
    uint8_t answer[NET_KEYED_ANSWER] = {0};

    net_answer_encode(n->token, which, answer);
    bool ok = random_fill(answer + NET_TOKEN_HALF, NET_NONCE) == 0 &&
              net_prove(n, p->bytes, answer, NET_ROLE_ACCEPTS, answer + NET_ANSWER_HEAD) &&
              net_prove(n, p->bytes, answer, NET_ROLE_CONNECTS, p->expected) &&
              net_send(p->fd, answer, sizeof(answer)) == sizeof(answer);
    memcpy(p->answer, answer, sizeof(p->answer));
    return ok && which == NET_ANSWER_STAYS;
}

/* The answer goes first: another thread may use the connection as soon as it is kept. A new connection has room for
 * it. False: the connection is of no use. */
static bool answer_hello(struct net *n, struct net_pending *p)
{
    uint8_t answer[NET_TOKEN_HALF];
    enum net_answer which = answer_to(n, &p->hello);

    p->answered = true;
    if (n->key->is_set)
        return answer_with_proof(n, p, which);
    net_answer_encode(n->token, which, answer);
    return net_send(p->fd, answer, sizeof(answer)) == sizeof(answer) && which == NET_ANSWER_STAYS;
}

static bool has_cipher(const struct net *n, const struct net_pending *p, struct net_link *link)
{
    return p->hello.cipher == SEAL_CIPHER_NONE ||
           net_encrypt(n, link, p->hello.cipher, p->bytes, p->answer, NET_ROLE_ACCEPTS) == 0;
}

/* Takes over the connection, unless it is of no use. A rank may leave a group between its answer and the proof. */
static bool keep_pending(struct net *n, struct net_pending *p)
{
    const struct net_hello *h = &p->hello;
    struct net_link *link = has_left_group(n, h) ? NULL : net_link_new(steal_fd(&p->fd));

    if (link && has_cipher(n, p, link) &&
        net_keep(n, (struct net_conn){.purpose = h->purpose,
                                      .group = h->group,
                                      .number = h->link,
                                      .rank = (int)h->from,
                                      .link = link}))
        return true;
    net_link_close(link);
    return false;
}

/* The first step is the hello, the second the proof; without a key there is no second one. */
static void take_step(struct net *n, struct net_pending *p)
{
    bool is_useful, is_last = p->answered || !n->key->is_set;

    pthread_mutex_lock(&n->lock);
    is_useful =
        p->answered ? net_bytes_equal(p->bytes + NET_HELLO_SIZE, p->expected, NET_MAC) : answer_hello(n, p);
    if (is_useful && is_last)
        is_useful = keep_pending(n, p);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    if (!is_useful)
        pending_drop(p);
}

static void receive_hello(struct net *n, struct net_pending *p)
{
    if (!net_hello_decode(p->bytes, (uint32_t)n->world_size, &p->hello) || !is_for_us(n, &p->hello)) {
        pending_drop(p);
        return;
    }
    net_tune(p->fd);
    net_limit_silence(p->fd, p->hello.purpose == NET_CONTROL);
    take_step(n, p);
}

void net_read_pending(struct net *n, struct net_pending *p)
{
    size_t wanted = p->answered ? NET_HELLO_SIZE + NET_MAC : NET_HELLO_SIZE;
    ssize_t got = net_receive(p->fd, p->bytes + p->n, wanted - p->n);

    if (got < 0) {
        pending_drop(p);
        return;
    }
    p->n += (size_t)got;
    if (p->n == wanted && p->answered)
        take_step(n, p);
    else if (p->n == wanted)
        receive_hello(n, p);
    else if (sock_now_ns() >= p->accepted_ns + HELLO_MS * NS_PER_MS)
        pending_drop(p);
}

/* A free slot, else the oldest one. */
static struct net_pending *find_slot(const struct net *n)
{
    struct net_pending *oldest = &n->pending[0];

    for (int i = 0; i < n->n_pending; i++) {
        if (n->pending[i].fd < 0)
            return &n->pending[i];
        if (n->pending[i].accepted_ns < oldest->accepted_ns)
            oldest = &n->pending[i];
    }
    return oldest;
}

int64_t net_pending_free_ns(const struct net *n)
{
    const struct net_pending *slot = find_slot(n);

    return slot->fd < 0 ? 0 : slot->accepted_ns + EVICT_MS * NS_PER_MS;
}

int64_t net_pending_deadline_ns(const struct net_pending *p)
{
    return p->accepted_ns + HELLO_MS * NS_PER_MS;
}

/* At most as many as there are slots, so that other sockets get their turn. */
void net_accept_all(struct net *n)
{
    for (int i = 0; i < n->n_pending && sock_now_ns() >= net_pending_free_ns(n); i++) {
        struct net_pending *slot = find_slot(n);
        int fd = accept4(n->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN)
                n->no_accept_ns = sock_deadline_ns(ACCEPT_PAUSE_MS);
            return;
        }
        if (slot->fd >= 0)
            net_read_pending(n, slot); /* its hello may have come since it was polled */
        if (slot->fd >= 0)
            pending_drop(slot);
        *slot = (struct net_pending){.fd = fd, .accepted_ns = sock_now_ns()};
        net_read_pending(n, slot);
    }
}
