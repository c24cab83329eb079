#pragma once

/*
 * The choice of the leader of several crunds, and the leader's saves in etcd. A pure state machine: takes replies and the
 * time, and answers with requests (etcd.h) and with the role of the own crund. rounds_etcd_uv.c does the I/O, and tests/sim
 * drives many such machines against a model of etcd.
 *
 *             the leader's key is missing                                  all jobs are read
 *   FOLLOWING ---------------------------------> CAMPAIGNING --> LOADING ------------------> LEADING
 *       ^                                            |             |                            |
 *       +--------------------------------------------+-------------+----------------------------+
 *           another crund was first, the lease has run out, or the outcome of a save is unknown
 *
 * The key PREFIX/leader belongs to a lease, which the leader renews. The key vanishes with the lease, and only then is there
 * room for another crund: a follower reads the key each FOLLOW_MS, and neither watches nor connects to the leader. A crund
 * takes the key by a transaction that compares the key's revision. The revision of the transaction is the *term*, which
 * grows with each leader. Each save compares the key's revision with the term, so a save of a replaced leader is never
 * carried out, however late the save arrives.
 *
 * Two keys are taken over before their lease has ended, as no crund can lead with either: the own key (after a save with an
 * unknown outcome), and, at the first look, the key of an ended process with the own address.
 *
 * Messages to agents wait for a mark (rounds_state_uv.h): either a save, or a read of the leader's key begun after the
 * decision. A leader stops deciding when the lease has run out by the leader's own clock.
 *
 * An unknown outcome (a time-out) of a save ends the leadership: the save may be carried out later, over a newer save. The
 * next term fences the late save. Without a majority of etcd nothing is decided, and leadership ends with the lease.
 *
 * Time without a leader when the leader's process or host is lost: the rest of the lease (2.5 to 3 s, renewed each 0.5 s),
 * up to 0.5 s until etcd removes the key, up to 0.2 s until a follower reads the key, and milliseconds for the transaction and the jobs.
 * Where etcd has to elect its own leader as well, the new leader of etcd prolongs all leases: 1 to 2 s for the election, then the whole
 * lease and the election timeout of etcd. Agents and workers go on meanwhile. Measured by failover_bench.py on two busy cores, 21 times
 * each: 3.1 s in the median and 3.6 s at the longest; with the leader of etcd 5.7 s and 7.4 s.
 *
 * The lease is longer than an election of etcd: with a shorter lease a leader would be deposed whenever etcd elects. Five of the six
 * parts of the lease are left when etcd stops answering.
 *
 * A job is a head and a text of its nodes, cut into chunks. The chunks of a text carry a version. The head names the version
 * and is written with or after the chunks, so a reader never sees half a text. An unchanged text is not written again.
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

/* Order to the shell. */
enum etcd_change {
    ETCD_NO_CHANGE,
    ETCD_ELECTED, /* etcd_leader_loaded() has the jobs: decide from here on */
    ETCD_DEPOSED, /* drop all held messages, close the agents, decide nothing */
};

/* Kinds of requests, one request under way. */
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
    size_t n_put, n_put_before; /* bytes of nodes_writing, before and behind the transaction under way */
    bool is_complete;           /* with the transaction under way */
};

struct etcd_leader_config {
    char prefix[ETCD_PREFIX_SIZE];
    char address[ETCD_ADDRESS_SIZE]; /* own address, for agents */
    uint64_t id;                     /* of the process: random */
};

struct etcd_leader {
    struct etcd_leader_config config;
    enum etcd_role role;
    int64_t term; /* LOADING, LEADING */

    int64_t lease; /* 0: none */
    uint64_t lease_until_ns, lease_asked_ns, lease_due_ns;
    bool lease_pending;

    /* The leader's key, as last seen. */
    int64_t seen_revision; /* 0: no key */
    uint64_t seen_id;
    char seen_address[ETCD_ADDRESS_SIZE];
    bool has_seen;
    bool has_looked;              /* at least once */
    int64_t predecessor_revision; /* key of an earlier process with the own address; 0: none */
    bool wants_campaign;          /* with the next lease, if there is no lease */
    uint64_t retired_until_ns;    /* neither leads nor has a lease before, see etcd_leader_retire() */

    enum etcd_work work; /* under way */
    int64_t work_term;
    uint64_t work_due_ns; /* not before, except for new work */
    struct list jobs;     /* LEADING */
    bool is_batch, wants_check;
    uint64_t mark, done; /* of the last batch begun, and complete */
    uint64_t batch_ns;   /* when the batch was begun */
    uint64_t n_versions;

    /* LOADING */
    char load_from[ETCD_KEY_SIZE];
    uint32_t load_keys; /* to be read at a time */
    struct etcd_pair *pairs;
    size_t n_pairs, pairs_capacity, load_bytes;

    enum etcd_change change;      /* not taken yet */
    char why[ETCD_TEXT_SIZE];     /* DEPOSED: a part of a sentence */
    char trouble[ETCD_TEXT_SIZE]; /* last refusal or error of etcd; "": none since a success */
    uint64_t n_saves;             /* number of transactions sent */
};

void etcd_leader_init(struct etcd_leader *l, const struct etcd_leader_config *config);
void etcd_leader_finish(struct etcd_leader *l);

/* Requests to be sent now; false: none. The caller owns them. After each call of the functions below. */
bool etcd_leader_next_work(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret);
bool etcd_leader_next_lease(struct etcd_leader *l, uint64_t now_ns, struct etcd_request *ret);

/* The reply to a request. Takes pairs out of the reply. */
void etcd_leader_take_work(struct etcd_leader *l, struct etcd_reply *reply, uint64_t now_ns);
void etcd_leader_take_lease(struct etcd_leader *l, const struct etcd_reply *reply, uint64_t now_ns);

/* Time has passed. */
void etcd_leader_tick(struct etcd_leader *l, uint64_t now_ns);

/* Whether the own crund may decide at now_ns, by the own clock. Ask for each event: a stopped process reads sockets before its
 * timers run, and another crund may lead meanwhile. */
bool etcd_leader_holds(const struct etcd_leader *l, uint64_t now_ns);

/* Latest time of the next call of a function above. */
uint64_t etcd_leader_deadline(const struct etcd_leader *l);

/* Change of the own crund since the last call. */
enum etcd_change etcd_leader_change(struct etcd_leader *l);

/* LEADING. To be saved, or removed, with the next batch; head and nodes are copied. Without memory: deposed. */
void etcd_leader_save(struct etcd_leader *l, uint64_t instance, const void *head, size_t n_head,
                      const void *nodes, size_t n_nodes);
void etcd_leader_forget(struct etcd_leader *l, uint64_t instance);

/* LEADING. A change cannot be saved, for want of memory: deposed. Otherwise a check would complete the mark of the change. */
void etcd_leader_resign(struct etcd_leader *l);

/* LEADING. The process cannot use a job in etcd: deposed for a minute. The lease is not renewed meanwhile, so the key vanishes
 * and another crund leads. why: a part of a sentence. */
void etcd_leader_retire(struct etcd_leader *l, const char *why, uint64_t now_ns);

/* The mark for a message decided now; a check follows if nothing is saved. */
uint64_t etcd_leader_want_mark(struct etcd_leader *l);

/* Begin of the batch under way, perhaps refused by etcd for a long time; 0: no batch. */
static inline uint64_t etcd_leader_unsaved(const struct etcd_leader *l)
{
    return l->is_batch ? l->batch_ns : 0;
}

/* After ETCD_ELECTED: calls with the text of each job, head and nodes in one piece, or NULL for an incomplete job. Once;
 * without memory: deposed. */
void etcd_leader_loaded(struct etcd_leader *l,
                        void (*job)(void *data, uint64_t instance, const uint8_t *text, size_t n),
                        void *data);

/* Address of the leader, as far as known; "": unknown, or the own crund leads. */
const char *etcd_leader_address(const struct etcd_leader *l);
