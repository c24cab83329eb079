#pragma once

/*
 * What the files of net share: tcp_sock.c (coming to be, the end), net_thread_sock.c (what is polled), net_pending_sock.c (those
 * who come), net_gossip_sock.c (control connections), net_messages_sock.c (inboxes), net_connect_sock.c (links). Nobody else includes
 * this.
 *
 * Locks: the watch calls us with its lock held, and we take ours in it; so ours is never held when
 * we call the watch.
 */

#include "worker-runtime/net/net_sock.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum {
    STRANGERS_MAX = 64,
    NO_ACCEPT_MS = 100, /* after the system had no descriptor for us */
};

struct stranger {
    int fd; /* -1: free slot */
    int64_t deadline_ns;
    uint8_t bytes[NET_HELLO_SIZE];
    size_t n;
};

struct net_control {
    int fd;
    int rank;
    bool left; /* it said goodbye: its end means nothing */
    bool gone; /* the thread is done with it */
    uint8_t bytes[NET_NEWS_SIZE];
    size_t n;
    struct net_control *next;
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
    bool reading;         /* the thread is at it */
    bool lent;            /* a taker reads the connection itself: the thread keeps off */
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
    struct net_control *controls;
    int n_came; /* control connections that others made */
    struct waiting *waiting;
    struct net_inbox *inboxes;
    uint8_t *ended, *left; /* by rank: told already; said goodbye */
};

/* net_thread_sock.c. The thread itself; something changed that it polls; with the lock, or when it has ended: what is
 * over leaves the lists. */
void *net_run(void *net);
void net_signal(int wake_fd);
void net_forget_gone(struct net *n);

/* net_pending_sock.c: the thread's. net_drop_stranger: its connection ends, the slot is free. */
void net_accept_all(struct net *n);
void net_read_stranger(struct net *n, struct stranger *s);
void net_drop_stranger(struct stranger *s);

/* net_gossip_sock.c. The thread: something came. With the lock: all that we are connected to hear it; a connection more, false:
 * no memory. net_tell_end: for the watch, which has its lock; a process of this host ended. */
void net_read_control(struct net *n, struct net_control *c);
void net_tell_all(struct net *n, const struct net_news *news);
bool net_keep_control(struct net *n, int rank, int fd, bool ours);
void net_tell_end(void *net, int rank);

/* net_messages_sock.c. The thread: something came. With the lock: an inbox more, false: no memory. */
void net_read_inbox(struct net *n, struct net_inbox *in);
bool net_keep_inbox(struct net *n, const struct net_hello *hello, int fd);
void net_free_inbox(struct net_inbox *in);

/* net_connect_sock.c. With the lock: somebody has connected for a link, false: no memory; those for it that were not
 * claimed go. */
bool net_keep_waiting(struct net *n, const struct net_hello *hello, int fd);
void net_forget_waiting(struct net *n, uint32_t group);
bool net_is_interrupted(const struct net_wait *wait);
/* With the lock: until something has changed, or for a moment. */
void net_wait_a_while(struct net *n, int64_t deadline_ns);
struct timespec net_timespec(int64_t ns);
