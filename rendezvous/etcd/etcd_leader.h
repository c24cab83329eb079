#pragma once

/*
 * Which of several crunds decides, and what it saves in etcd. A pure state machine: it takes replies and the time, and
 * answers with requests (etcd.h) and with what becomes of this crund; rounds_etcd_uv.c does the I/O, and tests/sim drives many
 * of them against a model of etcd.
 *
 *             the leader's key is missing                                  all jobs are read
 *   FOLLOWING ---------------------------------> CAMPAIGNING --> LOADING ------------------> LEADING
 *       ^                                            |             |                            |
 *       +--------------------------------------------+-------------+----------------------------+
 *           another one was first, the lease has run out, or it is not known whether a save was carried out
 *
 * The key PREFIX/leader belongs to a lease, which the leader renews. The key vanishes with the lease, and that alone makes room for
 * another crund: a follower reads the key each FOLLOW_MS, and neither watches nor connects to the leader. A crund takes the key by a
 * transaction that compares its revision. The revision of that transaction is the *term*: it grows with each leader. Each save
 * compares that the key still has this revision, so a save of a leader that was replaced is never carried out, however late it
 * arrives.
 *
 * Two keys are taken over before their lease has ended, as no crund can lead with them: the own key (after a save with an unknown
 * outcome), and at the first look the key of a process that had this crund's address, and has therefore ended.
 *
 * What agents are sent waits for a mark (rounds_state_uv.h): either a save, or a read of the leader's key that was begun after
 * the decision. A leader whose lease has run out by its own clock stops deciding by itself.
 *
 * An unknown outcome (a time-out) of a save ends the leadership: that save may be carried out later, over a newer one. The
 * next term fences it. Without a majority of etcd nothing is decided, and leadership ends with the lease.
 *
 * Time without a leader when the leader's process or host is lost: the rest of its lease (2.5 to 3 s, as it is renewed each 0.5 s),
 * up to 0.5 s until etcd removes the key, up to 0.2 s until a follower reads it, and milliseconds for the transaction and the jobs.
 * Where etcd has to elect a leader of its own as well, the new one prolongs all leases: 1 to 2 s for the election, then the whole
 * lease and the election timeout of etcd. Agents and workers go on meanwhile. Measured by failover_bench.py on two busy cores, 21 times
 * each: 3.1 s in the median and 3.6 s at the longest; with the leader of etcd 5.7 s and 7.4 s.
 *
 * The lease is longer than an election of etcd: with a shorter one a leader would be deposed whenever etcd elects. Five of the six
 * parts of the lease are left when etcd stops answering.
 *
 * A job is a head and a text of its nodes, which is cut into chunks. The chunks of one text carry a version; the head
 * names it, and is written with or after them, so a reader never sees half of it. An unchanged text is not written again.
 *
 *   PREFIX/leader                             crund 1 ID ADDRESS
 *   PREFIX/jobs/INSTANCE/head                 crund-job 1 VERSION CHUNKS CHECKSUM\n and the head
 *   PREFIX/jobs/INSTANCE/nodes-VERSION-CHUNK  a part of the text
 *
 * Failure: without memory a save, or the load, ends the leadership.
 */

#include "base/list.h"
#include "rendezvous/etcd/etcd.h"

enum {
    ETCD_LEASE_S = 3,
    ETCD_ADDRESS_SIZE = 280,     /* HOST:PORT with the NUL */
    ETCD_CHUNK_SIZE = 400 << 10, /* etcd limits a request to 1.5 MB */
    ETCD_LOAD_MAX = 256 << 20,   /* bytes of all jobs */
};

enum etcd_role { ETCD_FOLLOWING, ETCD_CAMPAIGNING, ETCD_LOADING, ETCD_LEADING };

/* What the shell has to do. */
enum etcd_change {
    ETCD_NO_CHANGE,
    ETCD_ELECTED, /* etcd_leader_loaded() has the jobs: decide from now on */
    ETCD_DEPOSED, /* drop all that is held, close the agents, decide nothing */
};

/* What this core sends at a time: one request of each. */
enum etcd_work {
    ETCD_WORK_NONE,
    ETCD_WORK_LOOK,
    ETCD_WORK_CAMPAIGN,
    ETCD_WORK_LOAD,
    ETCD_WORK_CHECK,
    ETCD_WORK_SAVE
};

struct etcd_job {
    struct list link;
    uint64_t instance;
    uint64_t version, nodes_hash; /* of the text of the nodes in etcd; version 0: none */

    bool is_waiting, forget;
    struct buf head, nodes; /* waiting */

    bool is_writing, forget_writing; /* in the batch */
    struct buf head_writing, nodes_writing;
    uint64_t version_writing;
    size_t n_put,
        n_put_before; /* bytes of nodes_writing, before and behind the transaction that is under way */
    bool is_complete; /* with that transaction */
};

struct etcd_leader_config {
    char prefix[ETCD_PREFIX_SIZE];
    char address[ETCD_ADDRESS_SIZE]; /* where agents reach this crund */
    uint64_t id;                     /* of this process: random */
};

struct etcd_leader {
    struct etcd_leader_config config;
    enum etcd_role role;
    int64_t term; /* LOADING, LEADING */

    int64_t lease; /* 0: none */
    uint64_t lease_until_ns, lease_asked_ns, lease_due_ns;
    bool lease_pending;

    /* The leader's key, as last seen. */
    int64_t seen_revision; /* 0: it did not exist */
    uint64_t seen_id;
    char seen_address[ETCD_ADDRESS_SIZE];
    bool has_seen;
    bool has_looked;              /* at least once */
    int64_t predecessor_revision; /* the key of the process that had our address before; 0: none */
    bool wants_campaign;          /* with the next lease, if there is none */
    uint64_t retired_until_ns;    /* neither leads nor has a lease before, see etcd_leader_retire() */

    enum etcd_work work; /* under way */
    int64_t work_term;
    uint64_t work_due_ns; /* not before, but for what has just come up */
    struct list jobs;     /* LEADING */
    bool is_batch, wants_check;
    uint64_t mark, done; /* of the last batch that was begun, or is complete */
    uint64_t batch_ns;   /* when that was begun */
    uint64_t n_versions;

    /* LOADING */
    char load_from[ETCD_KEY_SIZE];
    uint32_t load_keys; /* to be read at a time */
    struct etcd_pair *pairs;
    size_t n_pairs, pairs_capacity, load_bytes;

    enum etcd_change change;  /* not taken yet */
    char why[ETCD_TEXT_SIZE]; /* DEPOSED: a part of a sentence */
    char trouble
        [ETCD_TEXT_SIZE]; /* what etcd answered last instead of what was wanted; "": nothing since a success */
    uint64_t n_saves;     /* transactions that were sent */
};

void etcd_leader_init(struct etcd_leader *l, const struct etcd_leader_config *config);
void etcd_leader_finish(struct etcd_leader *l);

/* Requests to be sent now; false: none. The caller owns them. After each call of the functions below. */
bool etcd_leader_next_work(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret);
bool etcd_leader_next_lease(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret);

/* The reply to such a request. Takes pairs out of it. */
void etcd_leader_take_work(struct etcd_leader *l, struct etcd_reply *reply, uint64_t now_ns);
void etcd_leader_take_lease(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns);

/* Time has passed. */
void etcd_leader_tick(struct etcd_leader *l, uint64_t now_ns);

/* Whether this crund may decide at that time, by its own clock. To be asked for each event: a process that was stopped reads its
 * sockets before its timers run, and another crund may lead meanwhile. */
bool etcd_leader_holds(const struct etcd_leader *l, uint64_t now_ns);

/* When one of the three above is wanted, at the latest. */
uint64_t etcd_leader_deadline(const struct etcd_leader *l);

/* What has become of this crund since the last call. */
enum etcd_change etcd_leader_change(struct etcd_leader *l);

/* LEADING. To be saved, or removed, with the next batch; head and nodes are copied. Without memory: deposed. */
void etcd_leader_save(struct etcd_leader *l, uint64_t instance, const void *head, size_t n_head,
                      const void *nodes, size_t n_nodes);
void etcd_leader_forget(struct etcd_leader *l, uint64_t instance);

/* LEADING. What has changed cannot be saved, for want of memory: deposed. Otherwise a check would complete the mark of the change. */
void etcd_leader_resign(struct etcd_leader *l);

/* LEADING. This process cannot use a job in etcd: deposed for a minute. Its lease is not renewed in that time, so the key vanishes and
 * another crund leads. why: a part of a sentence. */
void etcd_leader_retire(struct etcd_leader *l, const char *why, uint64_t now_ns);

/* The mark that a message which is decided now has to wait for; a check follows if nothing is saved. */
uint64_t etcd_leader_want_mark(struct etcd_leader *l);

static inline uint64_t etcd_leader_done(const struct etcd_leader *l)
{
    return l->done;
}

/* Since when a batch is under way, which etcd may refuse for as long as it likes; 0: none is. */
static inline uint64_t etcd_leader_unsaved(const struct etcd_leader *l)
{
    return l->is_batch ? l->batch_ns : 0;
}

/* After ETCD_ELECTED: calls with the text of each job, head and nodes in one piece, or NULL for one that is not whole. Once;
 * without memory: deposed. */
void etcd_leader_loaded(struct etcd_leader *l,
                        void (*job)(void *data, uint64_t instance, const uint8_t *text, size_t n),
                        void *data);

/* Where the leader is, as far as is known; "": it is not, or it is this crund. */
const char *etcd_leader_address(const struct etcd_leader *l);
