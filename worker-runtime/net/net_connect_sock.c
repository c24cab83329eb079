/* Connections to other ranks: made by this rank, and made by other ranks for a thread to claim. */

#include "worker-runtime/net/net_impl_sock.h"

#include "base/cleanup.h"
#include "base/cond_os.h"
#include "base/random_os.h"
#include "proto/wait_sock.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/network_cut_os.h"
#include "worker-runtime/net/net_seal_openssl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int peer_result(int r, int rank, const char *what)
{
    switch (r) {
    case 0:
        return 0;
    case NET_E_INTERRUPTED:
        return crw_fail(CRW_E_PEER, "a peer failed while this rank %s rank %d", what, rank);
    case NET_E_TIMEOUT:
        return crw_fail(CRW_E_TIMEOUT, "this rank %s rank %d in vain for too long", what, rank);
    case NET_E_LOST:
        return crw_fail(CRW_E_PEER,
                        "rank %d closed the connection while this rank %s it: it ended, or is not of "
                        "this job",
                        rank, what);
    case NET_E_DIFFERS:
        return crw_fail(CRW_E_ENVIRONMENT,
                        "one of rank %d and this rank encrypts what it sends to other hosts, the other does "
                        "not: CRW_ENCRYPT must have one value on all nodes",
                        rank);
    case NET_E_LEFT:
        return crw_fail(CRW_E_PEER, "rank %d left the group before this rank %s it", rank, what);
    default:
        return crw_fail_errno(r, "this rank cannot connect to rank %d", rank);
    }
}

/* ---- connecting ---- */

enum {
    ATTEMPT_MS = 5000,    /* for the network to answer */
    RETRY_MS = 60 * 1000, /* a network that lets no connection through until then is taken for cut */
    RETRY_FIRST_MS = 20,
    RETRY_LAST_MS = 1000,
};

/* The bytes of the handshake. */
struct greeting {
    uint8_t hello[NET_HELLO_SIZE], answer[NET_KEYED_ANSWER];
};

/* The accepting rank has the key. */
static bool is_proved(const struct net *n, const uint8_t hello[NET_HELLO_SIZE],
                      const uint8_t answer[NET_KEYED_ANSWER])
{
    uint8_t expected[NET_MAC];

    return net_prove(n, hello, answer, NET_ROLE_ACCEPTS, expected) &&
           net_bytes_equal(answer + NET_ANSWER_HEAD, expected, NET_MAC);
}

static int prove_to(const struct net *n, const struct net_wait *wait, const struct greeting *g, int fd)
{
    uint8_t proof[NET_MAC];

    if (!net_prove(n, g->hello, g->answer, NET_ROLE_CONNECTS, proof))
        return -ENOSYS;
    return net_send_all(wait, fd, proof, sizeof(proof));
}

static int greet(const struct net *n, const struct net_wait *wait, const struct net_hello *hello, int fd,
                 struct greeting *ret)
{
    enum net_answer answer;

    net_hello_encode(hello, ret->hello);
    TRY(net_send_all(wait, fd, ret->hello, sizeof(ret->hello)));
    TRY(net_receive_all(wait, fd, ret->answer, n->key->is_set ? NET_KEYED_ANSWER : NET_TOKEN_HALF));
    if (!net_answer_decode(ret->answer, n->token, &answer) ||
        (n->key->is_set && !is_proved(n, ret->hello, ret->answer)))
        return NET_E_LOST;
    if (answer != NET_ANSWER_STAYS)
        return answer == NET_ANSWER_LEFT ? NET_E_LEFT : NET_E_DIFFERS;
    return n->key->is_set ? prove_to(n, wait, ret, fd) : 0;
}

/* The connection is the link's, and closed by a failure. */
static int make_link(const struct net *n, enum seal_cipher cipher, const struct greeting *g, int fd,
                     struct net_link **ret)
{
    struct net_link *link = net_link_new(fd);
    int r = link ? 0 : -ENOMEM;

    if (link && cipher != SEAL_CIPHER_NONE)
        r = net_encrypt(n, link, cipher, g->hello, g->answer, NET_ROLE_CONNECTS);
    if (r)
        net_link_close(link);
    else
        *ret = link;
    return r;
}

static int min_ms(int a, int b)
{
    return a < b ? a : b;
}

/* The network has ATTEMPT_MS, the process at the other end all the time: the process may be stopped. */
int net_connect_once(struct net *n, const struct net_wait *wait, struct net_hello hello, int to,
                     struct net_link **ret)
{
    const struct net_wait attempt = {wait->interrupt_fd, min_ms(wait->timeout_ms, ATTEMPT_MS)};
    _cleanup_close_ int fd = -1;
    struct greeting greeting;

    TRY(net_dial(n->peers[to].address, n->peers[to].port, &attempt, &fd));
    net_tune(fd);
    net_limit_silence(fd, true);
    hello.from = (uint32_t)n->rank;
    hello.to = (uint32_t)to;
    memcpy(hello.token, n->token, sizeof(hello.token));
    hello.generation = n->key->generation;
    hello.keyed = n->key->is_set;
    hello.cipher = n->key->encrypts ? net_seal_best_cipher() : SEAL_CIPHER_NONE;
    TRY(n->key->is_set ? random_fill(hello.nonce, sizeof(hello.nonce)) : 0);
    TRY(greet(n, wait, &hello, fd, &greeting));
    net_limit_silence(fd, hello.purpose == NET_CONTROL);
    return make_link(n, hello.cipher, &greeting, steal_fd(&fd), ret);
}

/* Ranks listen before other ranks learn the addresses, so a refused connection means the end of the rank (or a wrong
 * address). A closed connection may have lost the slot in a burst. The rest is the network: a route, an ARP entry or an
 * overlay is not there yet. */
static bool may_pass(int r)
{
    return r == NET_E_LOST || r == -ECONNRESET || r == -EADDRNOTAVAIL || r == -EAGAIN ||
           net_is_unreachable(r);
}

static bool is_known_absent(struct net *n, int rank)
{
    hold_lock(&n->lock);
    return n->ended[rank] || n->left[rank];
}

/* The rank at the other end noticed the difference first and has ended: the difference is the reason. */
static int result_of_difference(struct net *n, int r, int *rank)
{
    hold_lock(&n->lock);
    if (r != 0 && r != NET_E_DIFFERS && n->differs >= 0) {
        r = NET_E_DIFFERS;
        *rank = n->differs;
    }
    return r;
}

static int connect_result(struct net *n, int r, int to)
{
    r = result_of_difference(n, r, &to);
    if (r >= 0)
        return peer_result(r, to, "connected to");
    if (err_is_shortage(r) || r == -EINVAL)
        return crw_fail_errno(r, "this rank cannot connect to rank %d", to);
    return crw_fail(
        CRW_E_PEER,
        "cannot connect to rank %d at %s port %u: %s; the hosts of a job must reach each other at the "
        "addresses that their ranks listen on (see CRUN_LOCAL_ADDR)",
        to, n->peers[to].address, n->peers[to].port, strerror(-r));
}

/* Of something at the other end: the network is there. */
static bool is_answer(int r)
{
    return r == 0 || r == NET_E_LOST || r == NET_E_LEFT || r == NET_E_DIFFERS || r == -ECONNREFUSED ||
           r == -ECONNRESET;
}

/* A silent rank is noted with the first attempt: the generation may end during the others, when another rank gives up, and
 * the report of the end has to name this side of the cut, too. */
static int try_to_connect(struct net *n, const struct net_wait *wait, struct net_hello hello, int to,
                          struct net_link **ret)
{
    int r = net_connect_once(n, wait, hello, to, ret);

    if (net_is_unreachable(r))
        network_cut_note(to);
    else if (is_answer(r))
        network_cut_withdraw(to);
    return r;
}

int net_connect(struct net *n, const struct net_wait *wait, struct net_hello hello, int to,
                struct net_link **ret)
{
    int64_t give_up_ns = sock_deadline_ns(min_ms(wait->timeout_ms, RETRY_MS));
    struct net_wait pause = {wait->interrupt_fd, RETRY_FIRST_MS};
    int r = try_to_connect(n, wait, hello, to, ret);

    while (may_pass(r) && sock_now_ns() < give_up_ns && !is_known_absent(n, to)) {
        int paused = net_poll(&pause, NULL, 0);

        r = paused == NET_E_TIMEOUT ? try_to_connect(n, wait, hello, to, ret) : paused;
        pause.timeout_ms = min_ms(2 * pause.timeout_ms, RETRY_LAST_MS);
    }
    return connect_result(n, r, to);
}

/* ---- connections made by other ranks ---- */

/* The interrupt is a descriptor, the rest a condition: a thread that makes the descriptor readable also
 * calls net_wake(); the pause is for threads without net_wake(). */
enum { PAUSE_MS = 50 };

int net_await_change(struct net *n, const struct net_wait *wait, int64_t deadline_ns)
{
    struct pollfd polled = {.fd = wait->interrupt_fd, .events = POLLIN};
    int64_t pause_ns = sock_deadline_ns(PAUSE_MS);

    if (poll(&polled, 1, 0) > 0)
        return NET_E_INTERRUPTED;
    if (sock_now_ns() >= deadline_ns)
        return NET_E_TIMEOUT;
    /* The caller looks again, whatever ended the wait. */
    (void)cond_wait_until(&n->changed, &n->lock, (uint64_t)(pause_ns < deadline_ns ? pause_ns : deadline_ns));
    return 0;
}

int net_claim(struct net *n, const struct net_wait *wait, struct net_hello hello, int from,
              struct net_link **ret)
{
    int64_t deadline_ns = sock_deadline_ns(wait->timeout_ms);
    const struct net_conn wanted = {
        .purpose = hello.purpose, .group = hello.group, .number = hello.link, .rank = from};
    struct net_conn *found;
    int r = 0;

    pthread_mutex_lock(&n->lock);
    while (!(found = net_find(n, &wanted)) && r == 0) {
        bool is_gone = n->ended[from] || n->left[from];

        r = net_await_change(n, wait, is_gone ? 0 : deadline_ns);
        if (r == NET_E_TIMEOUT && is_gone)
            r = NET_E_LOST;
    }
    if (found) {
        *ret = steal_ptr(found->link);
        found->ended = true;
        r = 0;
    }
    pthread_mutex_unlock(&n->lock);
    r = result_of_difference(n, r, &from);
    return peer_result(r, from, "waited for");
}
