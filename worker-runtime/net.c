#include "worker-runtime/net.h"

/*
 * The thread polls everything that it has without a time-out, except that a stranger who connects and says
 * nothing is dropped after a while. It learns of changes through an eventfd. Nothing here blocks it: news
 * are a dozen bytes, and a control connection that does not take them is as good as dead.
 *
 * Strangers: a connection counts once its hello has the token. Until then it is one of a few slots; when
 * they are full the oldest goes. It never gets an answer.
 *
 * Locks: the watch calls us with its lock held, and we take ours in it; so ours is never held when
 * we call the watch.
 */

#include "proto/base/cleanup.h"
#include "proto/client.h"
#include "proto/connect_sock.h"
#include "proto/wait_sock.h"
#include "worker-runtime/error.h"
#include "worker-runtime/thread.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

enum {
    STRANGERS_MAX = 64,
    STRANGER_MS = 5000,
    NO_ACCEPT_MS = 100, /* after the system had no descriptor for us */
};

struct stranger {
    int fd; /* -1: free slot */
    int64_t deadline_ns;
    uint8_t bytes[NET_HELLO_SIZE];
    size_t n;
};

struct control {
    int fd;
    int rank;
    bool left; /* it said goodbye: its end means nothing */
    bool gone; /* the thread is done with it */
    uint8_t bytes[NET_NEWS_SIZE];
    size_t n;
    struct control *next;
};

/* Connected, verified, not yet asked for. */
struct waiting {
    struct net_hello hello;
    int fd;
    struct waiting *next;
};

struct net_inbox {
    uint32_t group;
    int from;
    int fd; /* -1: at its end */
    uint8_t *room;
    uint64_t came, taken; /* bytes; the difference is at most NET_MESSAGE_ROOM */
    bool forgotten;       /* the thread frees it */
    struct net_inbox *next;
};

struct net {
    int rank, world_size;
    struct watch *watch;
    struct net_peer self;
    struct net_peer *peers; /* by rank of the world */
    uint8_t token[NET_TOKEN];
    int listen_fd, wake_fd;
    pthread_t thread;
    bool running;
    struct stranger strangers[STRANGERS_MAX]; /* the thread's */
    struct pollfd *polled;                    /* the thread's */
    size_t n_polled_max;
    int64_t no_accept_ns;

    pthread_mutex_t lock; /* for all below */
    pthread_cond_t changed;
    int n_users;
    bool closing;
    uint32_t next_group;
    struct control *controls;
    int n_came; /* control connections that others made */
    struct waiting *waiting;
    struct net_inbox *inboxes;
    uint8_t *ended, *left; /* by rank: told already; said goodbye */
};

static void signal_fd(int fd)
{
    const uint64_t one = 1;

    (void)!write(fd, &one, sizeof(one)); /* an eventfd far from its maximum takes it */
}

/* ------------------------------------------------------------------ news */

static void send_news(const struct control *c, const struct net_news *news)
{
    uint8_t bytes[NET_NEWS_SIZE];

    net_news_encode(news, bytes);
    if (!c->gone)
        (void)net_send(c->fd, bytes, sizeof(bytes)); /* it is dead if it has no room, and we will know */
}

/* With the lock. False: known before. */
static bool spread_end(struct net *n, int rank, int detail)
{
    const struct net_news news = {NET_NEWS_ENDED, rank, detail};

    if (n->ended[rank] || n->closing)
        return false;
    n->ended[rank] = true;
    for (struct control *c = n->controls; c; c = c->next)
        send_news(c, &news);
    pthread_cond_broadcast(&n->changed);
    return true;
}

/* From the network, without the lock. */
static void hear_of_end(struct net *n, int rank, int detail)
{
    bool is_new;

    if (rank == n->rank)
        return; /* others think so: they will end the connections, and that tells us what it means */
    pthread_mutex_lock(&n->lock);
    is_new = spread_end(n, rank, detail);
    pthread_mutex_unlock(&n->lock);
    if (is_new)
        watch_note_end(n->watch, (struct shm_failure){SHM_FAILURE_DIED, rank, detail});
}

/* From the watch, which has its lock: a process of this host ended. */
static void tell_end(void *data, int rank)
{
    struct net *n = data;

    pthread_mutex_lock(&n->lock);
    (void)spread_end(n, rank, 0);
    pthread_mutex_unlock(&n->lock);
}

static void hear_goodbye(struct net *n, struct control *c)
{
    pthread_mutex_lock(&n->lock);
    c->left = true;
    n->left[c->rank] = true;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void hear(struct net *n, struct control *c)
{
    struct net_news news;

    c->n = 0;
    if (!net_news_decode(c->bytes, (uint32_t)n->world_size, &news))
        return; /* of no kind that we know: nothing to do about it */
    if (news.kind == NET_NEWS_LEAVES)
        hear_goodbye(n, c);
    else
        hear_of_end(n, news.rank, news.detail);
}

static void read_control(struct net *n, struct control *c)
{
    for (;;) {
        ssize_t got = net_receive(c->fd, c->bytes + c->n, sizeof(c->bytes) - c->n);

        if (got == 0)
            return;
        if (got < 0)
            break;
        c->n += (size_t)got;
        if (c->n == sizeof(c->bytes))
            hear(n, c);
    }
    pthread_mutex_lock(&n->lock);
    c->gone = true;
    pthread_mutex_unlock(&n->lock);
    if (!c->left)
        hear_of_end(n, c->rank, 0);
}

/* ------------------------------------------------------------------ messages */

static size_t stretch(uint64_t position, size_t n)
{
    size_t to_end = NET_MESSAGE_ROOM - (size_t)(position % NET_MESSAGE_ROOM);

    return n < to_end ? n : to_end;
}

/* Only the thread writes to the room, so that needs no lock. */
static void read_inbox(struct net *n, struct net_inbox *in)
{
    for (;;) {
        size_t room;
        ssize_t got;

        pthread_mutex_lock(&n->lock);
        room = NET_MESSAGE_ROOM - (size_t)(in->came - in->taken);
        pthread_mutex_unlock(&n->lock);
        if (room == 0)
            return;
        got = net_receive(in->fd, in->room + in->came % NET_MESSAGE_ROOM, stretch(in->came, room));
        if (got == 0)
            return;
        pthread_mutex_lock(&n->lock);
        if (got > 0) {
            in->came += (uint64_t)got;
        } else {
            (void)close(in->fd); /* read to its end */
            in->fd = -1;
        }
        pthread_cond_broadcast(&n->changed);
        pthread_mutex_unlock(&n->lock);
        if (got < 0)
            return;
    }
}

static void free_inbox(struct net_inbox *in)
{
    if (in->fd >= 0)
        (void)close(in->fd); /* nobody wants what comes */
    free(in->room);
    free(in);
}

/* ------------------------------------------------------------------ those who come */

static void drop(struct stranger *s)
{
    (void)close(s->fd); /* a stranger's */
    s->fd = -1;
}

static bool keep_control(struct net *n, int rank, int fd, bool ours)
{
    struct control *c = calloc(1, sizeof(*c));

    if (!c)
        return false;
    *c = (struct control){.fd = fd, .rank = rank, .next = n->controls};
    n->controls = c;
    n->n_came += !ours;
    return true;
}

static bool keep_inbox(struct net *n, const struct net_hello *hello, int fd)
{
    struct net_inbox *in = calloc(1, sizeof(*in));
    uint8_t *room = malloc(NET_MESSAGE_ROOM);

    if (!in || !room) {
        free(in);
        free(room);
        return false;
    }
    *in = (struct net_inbox){
        .group = hello->group, .from = (int)hello->from, .fd = fd, .room = room, .next = n->inboxes};
    n->inboxes = in;
    return true;
}

static bool keep_waiting(struct net *n, const struct net_hello *hello, int fd)
{
    struct waiting *w = calloc(1, sizeof(*w));

    if (!w)
        return false;
    *w = (struct waiting){.hello = *hello, .fd = fd, .next = n->waiting};
    n->waiting = w;
    return true;
}

static bool keep(struct net *n, const struct net_hello *hello, int fd)
{
    bool kept = false;

    pthread_mutex_lock(&n->lock);
    if (hello->purpose == NET_CONTROL)
        kept = keep_control(n, (int)hello->from, fd, false);
    else if (hello->purpose == NET_MESSAGES)
        kept = keep_inbox(n, hello, fd);
    else
        kept = keep_waiting(n, hello, fd);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return kept;
}

/* The whole hello is here. */
static void receive_stranger(struct net *n, struct stranger *s)
{
    struct net_hello hello;

    if (!net_hello_decode(s->bytes, (uint32_t)n->world_size, &hello) || hello.to != (uint32_t)n->rank ||
        !net_token_equal(hello.token, n->token)) {
        drop(s);
        return;
    }
    net_tune(s->fd);
    /* A new connection has room for the answer. */
    if (net_send(s->fd, n->token + NET_TOKEN_HALF, NET_TOKEN_HALF) != NET_TOKEN_HALF || !keep(n, &hello, s->fd))
        drop(s);
    else
        s->fd = -1;
}

static void read_stranger(struct net *n, struct stranger *s)
{
    ssize_t got = net_receive(s->fd, s->bytes + s->n, sizeof(s->bytes) - s->n);

    if (got < 0) {
        drop(s);
        return;
    }
    s->n += (size_t)got;
    if (s->n == sizeof(s->bytes))
        receive_stranger(n, s);
}

/* A free slot, or that of the oldest. */
static struct stranger *find_slot(struct net *n)
{
    struct stranger *oldest = &n->strangers[0];

    for (int i = 0; i < STRANGERS_MAX; i++) {
        if (n->strangers[i].fd < 0)
            return &n->strangers[i];
        if (n->strangers[i].deadline_ns < oldest->deadline_ns)
            oldest = &n->strangers[i];
    }
    drop(oldest);
    return oldest;
}

static void accept_all(struct net *n)
{
    for (;;) {
        int fd = accept4(n->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN)
                n->no_accept_ns = sock_deadline_ns(NO_ACCEPT_MS);
            return;
        }
        *find_slot(n) = (struct stranger){.fd = fd, .deadline_ns = sock_deadline_ns(STRANGER_MS)};
    }
}

/* ------------------------------------------------------------------ the thread */

/* What a slot of the poll list belongs to is found again by walking in the same order; only the thread takes
 * out of the lists, and what is added is added in front: `first` is where it began. */
struct turn {
    struct control *first_control;
    struct net_inbox *first_inbox;
    size_t n;
    int timeout_ms;
};

static void forget_gone(struct net *n)
{
    for (struct control **at = &n->controls; *at;) {
        struct control *c = *at;

        if (!c->gone) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        (void)close(c->fd); /* at its end */
        free(c);
    }
    for (struct net_inbox **at = &n->inboxes; *at;) {
        struct net_inbox *in = *at;

        if (!in->forgotten) {
            at = &in->next;
            continue;
        }
        *at = in->next;
        free_inbox(in);
    }
}

static bool make_room(struct net *n)
{
    size_t wanted = 2 + STRANGERS_MAX;
    struct pollfd *larger;

    for (struct control *c = n->controls; c; c = c->next)
        wanted++;
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        wanted++;
    if (wanted <= n->n_polled_max)
        return true;
    larger = reallocarray(n->polled, 2 * wanted, sizeof(*larger));
    if (!larger)
        return false;
    n->polled = larger;
    n->n_polled_max = 2 * wanted;
    return true;
}

static int time_left_ms(int64_t deadline_ns)
{
    int64_t left_ns = deadline_ns - sock_now_ns();

    return left_ns > 0 ? (int)(left_ns / 1000000) + 1 : 0;
}

static void add_poll(struct net *n, struct turn *t, int fd)
{
    n->polled[t->n++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void poll_strangers(struct net *n, struct turn *t)
{
    for (int i = 0; i < STRANGERS_MAX; i++) {
        int left_ms;

        add_poll(n, t, n->strangers[i].fd);
        if (n->strangers[i].fd < 0)
            continue;
        left_ms = time_left_ms(n->strangers[i].deadline_ns);
        if (t->timeout_ms < 0 || left_ms < t->timeout_ms)
            t->timeout_ms = left_ms;
    }
}

/* False when the thread shall end. */
static bool collect(struct net *n, struct turn *t)
{
    bool accepts = n->no_accept_ns == 0 || sock_now_ns() >= n->no_accept_ns;
    bool goes_on;

    *t = (struct turn){.timeout_ms = accepts ? -1 : NO_ACCEPT_MS};
    pthread_mutex_lock(&n->lock);
    forget_gone(n);
    goes_on = !n->closing;
    if (make_room(n)) { /* without memory the newest go unheard until there is some */
        t->first_control = n->controls;
        t->first_inbox = n->inboxes;
    } else {
        t->timeout_ms = NO_ACCEPT_MS;
    }
    add_poll(n, t, n->wake_fd);
    add_poll(n, t, accepts ? n->listen_fd : -1);
    poll_strangers(n, t);
    for (struct control *c = t->first_control; c; c = c->next)
        add_poll(n, t, c->fd);
    for (struct net_inbox *in = t->first_inbox; in; in = in->next)
        add_poll(n, t, in->came - in->taken < NET_MESSAGE_ROOM ? in->fd : -1);
    pthread_mutex_unlock(&n->lock);
    return goes_on;
}

static void handle_strangers(struct net *n, const struct pollfd *fds)
{
    for (int i = 0; i < STRANGERS_MAX; i++) {
        if (fds[i].fd < 0)
            continue;
        if (fds[i].revents)
            read_stranger(n, &n->strangers[i]);
        else if (time_left_ms(n->strangers[i].deadline_ns) == 0)
            drop(&n->strangers[i]);
    }
}

static void handle(struct net *n, const struct turn *t)
{
    const struct pollfd *fds = n->polled;
    size_t at = 2 + STRANGERS_MAX;

    if (fds[0].revents) {
        uint64_t count;

        (void)!read(n->wake_fd, &count, sizeof(count)); /* only to empty it */
    }
    handle_strangers(n, fds + 2);
    for (struct control *c = t->first_control; c; c = c->next)
        if (fds[at++].revents)
            read_control(n, c);
    for (struct net_inbox *in = t->first_inbox; in; in = in->next)
        if (fds[at++].revents)
            read_inbox(n, in);
    if (fds[1].revents) /* last: it may take slots from those that were polled */
        accept_all(n);
}

static void *run(void *data)
{
    struct net *n = data;
    struct turn turn;

    while (collect(n, &turn)) {
        if (poll(n->polled, turn.n, turn.timeout_ms) < 0)
            continue; /* interrupted: signals are blocked here, but a debugger may stop us */
        handle(n, &turn);
    }
    return NULL;
}

/* ------------------------------------------------------------------ coming to be, and the end */

static void net_free(struct net *n)
{
    for (struct control *c = n->controls; c; c = c->next)
        c->gone = true;
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        in->forgotten = true;
    forget_gone(n);
    while (n->waiting) {
        struct waiting *w = n->waiting;

        n->waiting = w->next;
        (void)close(w->fd); /* nobody asked for it */
        free(w);
    }
    for (int i = 0; i < STRANGERS_MAX; i++)
        if (n->strangers[i].fd >= 0)
            drop(&n->strangers[i]);
    if (n->listen_fd >= 0)
        (void)close(n->listen_fd);
    if (n->wake_fd >= 0)
        (void)close(n->wake_fd); /* an eventfd: nothing is pending */
    free(n->peers);
    free(n->polled);
    free(n->ended);
    free(n->left);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n);
}

static struct net *net_new(int rank, int world_size, struct watch *watch)
{
    struct net *n = calloc(1, sizeof(*n));
    pthread_condattr_t attributes;

    if (!n)
        return NULL;
    *n = (struct net){
        .rank = rank, .world_size = world_size, .watch = watch, .n_users = 1, .next_group = 1,
        .listen_fd = -1, .wake_fd = -1,
        .peers = calloc((size_t)world_size, sizeof(*n->peers)),
        .ended = calloc((size_t)world_size, 1),
        .left = calloc((size_t)world_size, 1),
    };
    for (int i = 0; i < STRANGERS_MAX; i++)
        n->strangers[i].fd = -1;
    pthread_mutex_init(&n->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&n->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (n->peers && n->ended && n->left)
        return n;
    net_free(n);
    return NULL;
}

static int begin(struct net *n, const char *address)
{
    int r;

    n->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->wake_fd < 0)
        return crw_fail_errno(-errno, "cannot listen for ranks of other hosts");
    r = net_listen(address, &n->listen_fd, &n->self.port);
    if (r < 0)
        return crw_fail_errno(r, "cannot listen for ranks of other hosts on address %s", address);
    (void)stpncpy(n->self.address, address, sizeof(n->self.address) - 1);
    return 0;
}

int net_create(const char *address, int rank, int world_size, struct watch *watch, struct net **ret)
{
    struct net *n = net_new(rank, world_size, watch);
    int r;

    if (!n)
        return crw_fail_errno(-ENOMEM, "cannot listen for ranks of other hosts");
    r = begin(n, address);
    if (r != 0)
        net_free(n);
    else
        *ret = n;
    return r;
}

struct net *net_share(struct net *n)
{
    pthread_mutex_lock(&n->lock);
    n->n_users++;
    pthread_mutex_unlock(&n->lock);
    return n;
}

/* The end of the connections says no more than the goodbye before it. */
void net_destroy(struct net *n)
{
    const struct net_news goodbye = {NET_NEWS_LEAVES, n ? n->rank : 0, 0};
    bool last;

    if (!n)
        return;
    pthread_mutex_lock(&n->lock);
    last = --n->n_users == 0;
    n->closing = last;
    for (struct control *c = n->controls; last && c; c = c->next)
        send_news(c, &goodbye);
    pthread_mutex_unlock(&n->lock);
    if (!last)
        return;
    watch_set_teller(n->watch, NULL, NULL);
    if (n->running) {
        signal_fd(n->wake_fd);
        pthread_join(n->thread, NULL);
    }
    net_free(n);
}

const struct net_peer *net_self(const struct net *n)
{
    return &n->self;
}

int net_start(struct net *n, const struct net_peer *peers, const uint8_t *token)
{
    int r;

    memcpy(n->peers, peers, (size_t)n->world_size * sizeof(*peers));
    memcpy(n->token, token, NET_TOKEN);
    r = thread_start(&n->thread, run, n);
    if (r < 0)
        return crw_fail_errno(r, "cannot start a thread for ranks of other hosts");
    n->running = true;
    watch_set_teller(n->watch, tell_end, n);
    return 0;
}

uint32_t net_next_group(const struct net *n)
{
    return n->next_group;
}

void net_use_group(struct net *n, uint32_t group)
{
    if (group >= n->next_group)
        n->next_group = group + 1;
}

/* ------------------------------------------------------------------ connections */

static int result(int r, int rank, const char *what)
{
    switch (r) {
    case 0:
        return 0;
    case NET_E_INTERRUPTED:
        return crw_fail(CRW_E_PEER, "a peer failed while this rank %s rank %d", what, rank);
    case NET_E_TIMEOUT:
        return crw_fail(CRW_E_TIMEOUT, "this rank %s rank %d in vain for too long", what, rank);
    case NET_E_LOST:
        return crw_fail(CRW_E_PEER, "rank %d closed the connection while this rank %s it: it ended, or is not of "
                                    "this job", rank, what);
    default:
        return crw_fail_errno(r, "this rank cannot connect to rank %d", rank);
    }
}

static int connect_to(const struct net_peer *peer, const struct net_wait *wait, int rank, int *ret_fd)
{
    struct sock_interrupt interrupt = {.wake_fd = wait->interrupt_fd};
    char why[256] = "";
    int r = sock_connect(peer->address, peer->port, &interrupt, sock_deadline_ns(wait->timeout_ms), ret_fd, why,
                         sizeof(why));

    switch (r) {
    case CLIENT_E_CLOSED:
        return crw_fail(CRW_E_PEER, "cannot connect to rank %d at %s port %u: %s; the hosts of a job must reach each "
                                    "other at the addresses that their ranks listen on (see CRUN_LOCAL_ADDR)",
                        rank, peer->address, peer->port, why);
    case CLIENT_E_TIMEOUT:
        return result(NET_E_TIMEOUT, rank, "tried to reach");
    case CLIENT_E_INTERRUPTED:
        return result(NET_E_INTERRUPTED, rank, "connected to");
    default:
        return result(r, rank, "connected to");
    }
}

static int greet(const struct net *n, const struct net_wait *wait, const struct net_hello *hello, int fd)
{
    uint8_t bytes[NET_HELLO_SIZE], answer[NET_TOKEN_HALF];
    int r;

    net_hello_encode(hello, bytes);
    r = net_send_all(wait, fd, bytes, sizeof(bytes));
    if (r == 0)
        r = net_receive_all(wait, fd, answer, sizeof(answer));
    if (r == 0 && !net_token_equal(answer, n->token + NET_TOKEN_HALF))
        r = NET_E_LOST;
    return r;
}

int net_connect(struct net *n, const struct net_wait *wait, struct net_hello hello, int to, int *ret_fd)
{
    _cleanup_close_ int fd = -1;
    int r = connect_to(&n->peers[to], wait, to, &fd);

    if (r != 0)
        return r;
    net_tune(fd);
    hello.from = (uint32_t)n->rank;
    hello.to = (uint32_t)to;
    memcpy(hello.token, n->token, sizeof(hello.token));
    r = result(greet(n, wait, &hello, fd), to, "greeted");
    if (r == 0)
        *ret_fd = steal_fd(&fd);
    return r;
}

static int take_waiting(struct net *n, const struct net_hello *hello, int from)
{
    for (struct waiting **at = &n->waiting; *at; at = &(*at)->next) {
        struct waiting *w = *at;
        int fd = w->fd;

        if (w->hello.purpose != hello->purpose || w->hello.group != hello->group || w->hello.link != hello->link ||
            (int)w->hello.from != from)
            continue;
        *at = w->next;
        free(w);
        return fd;
    }
    return -1;
}

static bool is_interrupted(const struct net_wait *wait)
{
    struct pollfd polled = {.fd = wait->interrupt_fd, .events = POLLIN};

    return poll(&polled, 1, 0) > 0;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

/* The interrupt is a descriptor, the rest a condition: who makes the first readable also wakes us by
 * net_wake(), and the pause is for those that cannot. */
enum { PAUSE_MS = 50 };

static void wait_a_while(struct net *n, int64_t deadline_ns)
{
    int64_t pause_ns = sock_deadline_ns(PAUSE_MS);
    const struct timespec until = timespec_of(pause_ns < deadline_ns ? pause_ns : deadline_ns);

    (void)pthread_cond_timedwait(&n->changed, &n->lock, &until); /* the caller looks again, whatever it was */
}

int net_claim(struct net *n, const struct net_wait *wait, struct net_hello hello, int from, int *ret_fd)
{
    int64_t deadline_ns = sock_deadline_ns(wait->timeout_ms);
    int fd = -1, r = 0;

    pthread_mutex_lock(&n->lock);
    while (r == 0 && (fd = take_waiting(n, &hello, from)) < 0) {
        if (is_interrupted(wait))
            r = NET_E_INTERRUPTED;
        else if (n->ended[from] || n->left[from])
            r = NET_E_LOST;
        else if (sock_now_ns() >= deadline_ns)
            r = NET_E_TIMEOUT;
        else
            wait_a_while(n, deadline_ns);
    }
    pthread_mutex_unlock(&n->lock);
    if (r == 0)
        *ret_fd = fd;
    return result(r, from, "waited for");
}

int net_add_control(struct net *n, int rank, int fd)
{
    bool kept;

    pthread_mutex_lock(&n->lock);
    kept = keep_control(n, rank, fd, true);
    pthread_mutex_unlock(&n->lock);
    if (!kept) {
        (void)close(fd); /* unused */
        return crw_fail_errno(-ENOMEM, "cannot keep a connection to rank %d", rank);
    }
    signal_fd(n->wake_fd);
    return 0;
}

int net_await_controls(struct net *n, const struct net_wait *wait, int n_controls)
{
    int64_t deadline_ns = sock_deadline_ns(wait->timeout_ms);
    int r = 0;

    pthread_mutex_lock(&n->lock);
    while (r == 0 && n->n_came < n_controls) {
        if (is_interrupted(wait))
            r = NET_E_INTERRUPTED;
        else if (sock_now_ns() >= deadline_ns)
            r = NET_E_TIMEOUT;
        else
            wait_a_while(n, deadline_ns);
    }
    pthread_mutex_unlock(&n->lock);
    if (r == NET_E_INTERRUPTED)
        return crw_fail(CRW_E_PEER, "a peer failed while this rank waited for ranks of other hosts");
    return r ? crw_fail(CRW_E_TIMEOUT, "ranks of other hosts did not connect within %d ms", wait->timeout_ms) : 0;
}

void net_wake(struct net *n)
{
    pthread_mutex_lock(&n->lock);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

/* ------------------------------------------------------------------ taking messages */

static struct net_inbox *find_inbox(struct net *n, uint32_t group, int from)
{
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        if (in->group == group && in->from == from && !in->forgotten)
            return in;
    return NULL;
}

/* With the lock: until there is something in the inbox. */
static int await_bytes(struct net *n, uint32_t group, int from, int timeout_ms, bool (*is_over)(void *data),
                       void *over_data, struct net_inbox **ret_inbox)
{
    int64_t deadline_ns = sock_deadline_ns(timeout_ms);
    const struct timespec until = timespec_of(deadline_ns);

    for (;;) {
        struct net_inbox *in = find_inbox(n, group, from);

        if (in && in->came > in->taken) {
            *ret_inbox = in;
            return 0;
        }
        if (is_over(over_data))
            return NET_E_INTERRUPTED;
        /* What it sent before it left comes on another connection, until that ends, too. */
        if (in ? in->fd < 0 : n->left[from])
            return NET_E_LOST;
        if (sock_now_ns() >= deadline_ns)
            return NET_E_TIMEOUT;
        (void)pthread_cond_timedwait(&n->changed, &n->lock, &until); /* looks again, whatever it was */
    }
}

/* What was full is polled again. */
static void give_room(struct net *n, struct net_inbox *in, size_t taken)
{
    bool was_full = in->came - in->taken == NET_MESSAGE_ROOM;

    in->taken += taken;
    if (was_full)
        signal_fd(n->wake_fd);
}

int net_take(struct net *n, uint32_t group, int from, void *data, size_t n_bytes, int timeout_ms,
             bool (*is_over)(void *data), void *over_data)
{
    size_t done = 0;
    int r = 0;

    pthread_mutex_lock(&n->lock);
    while (r == 0 && done < n_bytes) {
        struct net_inbox *in;
        size_t there, piece;

        r = await_bytes(n, group, from, timeout_ms, is_over, over_data, &in);
        if (r != 0)
            break;
        there = (size_t)(in->came - in->taken);
        piece = stretch(in->taken, n_bytes - done < there ? n_bytes - done : there);
        pthread_mutex_unlock(&n->lock); /* one taker at a time, and the thread does not write here */
        if (data)
            memcpy((uint8_t *)data + done, in->room + in->taken % NET_MESSAGE_ROOM, piece);
        pthread_mutex_lock(&n->lock);
        give_room(n, in, piece);
        done += piece;
    }
    pthread_mutex_unlock(&n->lock);
    return r;
}

void net_forget_group(struct net *n, uint32_t group)
{
    pthread_mutex_lock(&n->lock);
    for (struct net_inbox *in = n->inboxes; in; in = in->next)
        in->forgotten = in->forgotten || in->group == group;
    for (struct waiting **at = &n->waiting; *at;) {
        struct waiting *w = *at;

        if (w->hello.group != group) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        (void)close(w->fd); /* nobody will ask for it */
        free(w);
    }
    pthread_mutex_unlock(&n->lock);
    signal_fd(n->wake_fd);
}
