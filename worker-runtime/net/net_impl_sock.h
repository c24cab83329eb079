#pragma once

/*
 * What the files of net share: net_sock.c (creation and end), net_thread_sock.c (what is polled),
 * net_pending_sock.c (accepting), net_gossip_sock.c (control connections), net_messages_sock.c
 * (inboxes), net_presence_sock.c (which ranks have left a group), net_connect_sock.c (links). No other
 * file includes this.
 *
 * Lock order: the lock of the failure detector, then n->lock. The detector calls net_notify_end() with
 * its lock held, so the net never calls the detector with n->lock held.
 */

#include "worker-runtime/base/job_key_os.h"
#include "worker-runtime/net/net_sock.h"

#include <pthread.h>
#include <stdbool.h>

#define NS_PER_MS INT64_C(1000000)

enum { ACCEPT_PAUSE_MS = 100 }; /* after the system had no descriptor for us */

struct net_pending {
    int fd; /* -1: free slot */
    int64_t accepted_ns;
    uint8_t
        bytes[NET_HELLO_SIZE + NET_MAC]; /* a hello, and, where the job has a key, the proof that follows */
    size_t n;
    struct net_hello hello;          /* once it is complete */
    uint8_t answer[NET_ANSWER_HEAD]; /* once it is sent */
    uint8_t expected[NET_MAC];       /* the proof, the same */
    bool answered;
};

/* A connection by which one rank watches that another one is in a group. */
struct net_presence {
    struct net_link *link;
    uint32_t group;
    int rank;   /* at the other end */
    bool ours;  /* this rank watches, else it is watched */
    bool ended; /* the thread closes it */
    struct net_presence *next;
};

/* A group of which this rank is a member. */
struct net_group {
    uint32_t id;
    struct net_group *next;
    uint8_t left[]; /* by rank of the world: it has left this group */
};

struct net_control {
    struct net_link *link;
    int rank;
    bool left;  /* it has announced that it leaves: its end is no failure */
    bool ended; /* the thread is done with it */
    uint8_t bytes[NET_RECORD_SIZE];
    size_t n;
    struct net_control *next;
};

/* Connected and verified, not yet claimed. */
struct net_waiting {
    struct net_hello hello;
    struct net_link *link;
    struct net_waiting *next;
};

struct net_inbox {
    uint32_t group;
    int from;
    struct net_link *link; /* NULL: at its end */
    int error;             /* 0, or -EBADMSG: why it ended */
    uint8_t *room;
    uint64_t came, taken; /* bytes; the difference is at most NET_MESSAGE_ROOM */
    bool reading;         /* the thread is at it */
    bool lent;            /* a taker reads the connection itself: the thread keeps off */
    bool forgotten;       /* the thread frees it */
    struct net_inbox *next;
};

struct net {
    int rank, world_size;
    struct failure_detector *detector;
    struct net_peer self;
    struct net_peer *peers; /* by rank of the world */
    uint8_t token[NET_TOKEN];
    struct job_key *key; /* in key_memory_new()'s memory */
    int listen_fd, wake_fd;
    pthread_t thread;
    bool running;
    struct net_pending *pending; /* the thread's */
    int n_pending;
    struct pollfd *polled; /* the thread's */
    size_t n_polled_max;
    int64_t no_accept_ns;

    pthread_mutex_t lock; /* for all below */
    pthread_cond_t changed;
    int n_users;
    bool closing;
    uint32_t next_group;
    int differs; /* a rank with the token whose hello differs in whether data is encrypted; -1: none so far */
    struct net_control *controls;
    int n_came; /* control connections that others made */
    struct net_waiting *waiting;
    struct net_inbox *inboxes;
    struct net_presence *presences;
    struct net_group *groups;
    uint8_t *ended, *left; /* by rank: its end was passed on; it has announced that it leaves */
};

/* net_proof_sock.c. The proof of the rank with that role, for the bytes of a hello and the head of its answer. False: OpenSSL
 * fails, and so does the connection. */
bool net_prove(const struct net *n, const uint8_t hello[NET_HELLO_SIZE],
               const uint8_t answer[NET_ANSWER_HEAD], enum net_role role, uint8_t ret[NET_MAC]);

/* From now on the link has that cipher. own: the role of this rank. 0, -ENOMEM, -ENOSYS. */
int net_encrypt(const struct net *n, struct net_link *link, enum seal_cipher cipher,
                const uint8_t hello[NET_HELLO_SIZE], const uint8_t answer[NET_ANSWER_HEAD],
                enum net_role own);

/* net_thread_sock.c. net_run(): the thread. net_signal(): wakes it because something changed that it
 * polls. net_free_ended(): removes what has ended from the lists; caller holds n->lock, or the thread
 * has ended. */
void *net_run(void *net);
void net_signal(int wake_fd);
void net_free_ended(struct net *n);

/* net_pending_sock.c. All but the first two are called by the thread only. net_pending_init(): false: no memory. */
bool net_pending_init(struct net *n);
void net_pending_finish(struct net *n);
void net_accept_all(struct net *n);
void net_read_pending(struct net *n, struct net_pending *p);
/* From when on another connection can be accepted; 0: now. */
int64_t net_pending_free_ns(const struct net *n);
/* When a pending connection has to be read again, at the latest. */
int64_t net_pending_deadline_ns(const struct net_pending *p);

/*
 * net_presence_sock.c. Caller holds n->lock, except in net_read_presence(), which the thread calls when something came.
 * net_keep_presence(): takes over link; false: no memory. net_end_presences(): this rank leaves the group.
 */
bool net_keep_presence(struct net *n, uint32_t group, int rank, struct net_link *link, bool ours);
bool net_watches_presence(const struct net *n, uint32_t group, int rank);
void net_read_presence(struct net *n, struct net_presence *p);
void net_end_presences(struct net *n, uint32_t group);
void net_free_ended_presences(struct net *n);
/* NULL: this rank is no member (any more). */
struct net_group *net_find_group(const struct net *n, uint32_t id);
void net_remove_group(struct net *n, uint32_t id);
bool net_has_left(const struct net *n, uint32_t id, int rank);
void net_mark_left(struct net *n, uint32_t id, int rank);

/*
 * net_gossip_sock.c. net_read_control(): the thread calls it when something came. net_notify_all():
 * sends a record on every control connection; caller holds n->lock. net_keep_control(): registers a
 * connection and takes it over; false: no memory; caller holds n->lock. net_notify_end(): callback of
 * the failure detector, called with its lock held: a process of this host ended.
 */
void net_read_control(struct net *n, struct net_control *c);
void net_notify_all(struct net *n, const struct net_record *record);
bool net_keep_control(struct net *n, int rank, struct net_link *link, bool ours);
void net_notify_end(void *net, int rank);

/* net_messages_sock.c. net_read_inbox(): the thread calls it when something came. net_keep_inbox():
 * takes over link; false: no memory; caller holds n->lock. */
void net_read_inbox(struct net *n, struct net_inbox *in);
bool net_keep_inbox(struct net *n, const struct net_hello *hello, struct net_link *link);
void net_free_inbox(struct net_inbox *in);

/* net_connect_sock.c. Caller holds n->lock. net_keep_waiting(): a connection for a link, until it is
 * claimed; false: no memory. net_forget_waiting(): closes those of a group. */
bool net_keep_waiting(struct net *n, const struct net_hello *hello, struct net_link *link);
void net_forget_waiting(struct net *n, uint32_t group);
/* One attempt to connect, without a message: 0, NET_E_..., -errno. Caller does not hold n->lock. */
int net_connect_once(struct net *n, const struct net_wait *wait, struct net_hello hello, int to,
                     struct net_link **ret);
bool net_is_interrupted(const struct net_wait *wait);
/* Waits until something has changed, or for a moment. Caller holds n->lock. */
void net_wait_for_change(struct net *n, int64_t deadline_ns);
