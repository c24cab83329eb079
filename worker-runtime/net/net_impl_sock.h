#pragma once

/*
 * Shared by the files of net: net_sock.c (creation, end), net_conns_sock.c (the list of connections), net_thread_sock.c (polling),
 * net_pending_sock.c (accepting), net_gossip_sock.c (control connections), net_messages_sock.c
 * (inboxes), net_presence_sock.c (which ranks have left a group), net_connect_sock.c (links). No other
 * file includes this header.
 *
 * Lock order: the lock of the failure detector, then n->lock. The detector calls net_notify_end() with
 * the detector's lock held, so the net never calls the detector with n->lock held.
 */

#include "base/lock_os.h"
#include "worker-runtime/base/job_key_os.h"
#include "worker-runtime/net/net_sock.h"

#include <pthread.h>
#include <stdbool.h>

#define NS_PER_MS INT64_C(1000000)

enum { ACCEPT_PAUSE_MS = 100 }; /* after the system had no descriptor for us */

struct net_pending {
    int fd; /* -1: free slot */
    int64_t accepted_ns;
    uint8_t bytes[NET_HELLO_SIZE + NET_MAC]; /* a hello, and the proof behind it where the job has a key */
    size_t n;
    struct net_hello hello;          /* once complete */
    uint8_t answer[NET_ANSWER_HEAD]; /* once sent */
    uint8_t expected[NET_MAC];       /* the proof, the same */
    bool answered;
};

/* A group with this rank as a member. */
struct net_group {
    uint32_t id;
    struct net_group *next;
    uint8_t left[]; /* by rank of the world: has left the group */
};

/* A verified connection. Only the thread removes connections from the list; new connections are added in front. */
struct net_conn {
    enum net_purpose purpose;
    uint32_t group;
    uint32_t number;       /* of a link (NET_DATA) */
    int rank;              /* at the other end */
    bool ours;             /* this rank connected; NET_PRESENCE: and watches, else is watched */
    bool left;             /* NET_CONTROL: the rank has announced that it leaves, so the end is no failure */
    bool ended;            /* of no use any more: the thread closes and frees it */
    struct net_link *link; /* NULL: NET_DATA after the claim, NET_MESSAGES after the end */
    uint8_t record[NET_RECORD_SIZE]; /* NET_CONTROL: the next record, as far as received */
    size_t n_record;

    /* NET_MESSAGES: the inbox. */
    int error; /* 0, or -EBADMSG: the reason of the end */
    uint8_t *room;
    uint64_t came, taken; /* bytes; the difference is at most NET_MESSAGE_ROOM */
    bool reading;         /* the thread is receiving */
    bool lent;            /* a taker reads the connection: the thread keeps off */
    struct net_conn *next;
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
    struct net_conn *conns;
    size_t n_conns;
    int n_came; /* control connections made by other ranks */
    struct net_group *groups;
    uint8_t *ended, *left; /* by rank: the end was passed on; the leave was announced */
};

/* net_seal_openssl.c. The proof of the rank with the role, for the bytes of a hello and the head of the answer. False: OpenSSL
 * fails, and so does the connection. */
bool net_prove(const struct net *n, const uint8_t hello[NET_HELLO_SIZE],
               const uint8_t answer[NET_ANSWER_HEAD], enum net_role role, uint8_t ret[NET_MAC]);

/* From now on the link has the cipher. own: the role of this rank. 0, -ENOMEM, -ENOSYS. */
int net_encrypt(const struct net *n, struct net_link *link, enum seal_cipher cipher,
                const uint8_t hello[NET_HELLO_SIZE], const uint8_t answer[NET_ANSWER_HEAD],
                enum net_role own);

/*
 * net_conns_sock.c. Caller holds n->lock, except in net_signal(). net_keep(): takes over conn.link; false: no memory. net_find(): the connection with the purpose,
 * group, number, rank and side of `like`. net_free_ended(): also when the thread has ended. net_signal(): wakes the thread after a
 * change of the polled descriptors.
 */
bool net_keep(struct net *n, struct net_conn conn);
struct net_conn *net_find(const struct net *n, const struct net_conn *like);
void net_free_ended(struct net *n);
void net_signal(int wake_fd);

/* net_thread_sock.c: the thread. */
void *net_run(void *net);

/* net_pending_sock.c. All but the first two are called by the thread only. net_pending_init(): false: no memory. */
bool net_pending_init(struct net *n);
void net_pending_finish(struct net *n);
void net_accept_all(struct net *n);
void net_read_pending(struct net *n, struct net_pending *p);
/* From when on another connection can be accepted; 0: now. */
int64_t net_pending_free_ns(const struct net *n);
/* When a pending connection has to be read again, at the latest. */
int64_t net_pending_deadline_ns(const struct net_pending *p);

/* net_presence_sock.c. Caller holds n->lock, except in net_read_presence(), called by the thread when something came. */
void net_read_presence(struct net *n, struct net_conn *c);
/* NULL: this rank is no member (any more). */
struct net_group *net_find_group(const struct net *n, uint32_t id);
void net_remove_group(struct net *n, uint32_t id);
bool net_has_left(const struct net *n, uint32_t id, int rank);
void net_mark_left(struct net *n, uint32_t id, int rank);

/*
 * net_gossip_sock.c. net_read_control(): called by the thread when something came. net_notify_all(): sends a record on every
 * control connection; caller holds n->lock. net_notify_end(): callback of the failure detector, called with the detector's lock held: a
 * process of this host ended.
 */
void net_read_control(struct net *n, struct net_conn *c);
void net_notify_all(struct net *n, const struct net_record *record);
void net_notify_end(void *net, int rank);

/* net_messages_sock.c. Called by the thread when something came. */
void net_read_inbox(struct net *n, struct net_conn *c);

/* net_connect_sock.c. */
/* One attempt to connect, without a message: 0, NET_E_..., -errno. Caller does not hold n->lock. */
int net_connect_once(struct net *n, const struct net_wait *wait, struct net_hello hello, int to,
                     struct net_link **ret);
/* Waits until something has changed, or for a moment. Caller holds n->lock. 0, NET_E_INTERRUPTED, NET_E_TIMEOUT. */
int net_await_change(struct net *n, const struct net_wait *wait, int64_t deadline_ns);
