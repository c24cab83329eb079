#pragma once

/*
 * Which of several crunds decides, and what it saves in etcd. A pure state machine: it takes replies and the time, and
 * answers with requests (etcd.h) and with what becomes of this crund; rounds_etcd_uv.c does the I/O, and tests/sim drives many
 * of them against a model of etcd.
 *
 *             the leader's key is missing, or its crund has ended          all jobs are read
 *   FOLLOWING ---------------------------------> CAMPAIGNING --> LOADING ------------------> LEADING
 *       ^                                            |             |                            |
 *       +--------------------------------------------+-------------+----------------------------+
 *           another one was first, the lease has run out, or it is not known whether a save was carried out
 *
 * The key PREFIX/leader belongs to a lease, which this crund renews; with the lease it vanishes. A crund takes the key over by
 * a transaction that compares its revision. The revision of that transaction is the *term*: it grows with each leader. Each
 * save compares that the key still has this revision, so a save of a leader that was replaced is never carried out, however
 * late it arrives.
 *
 * What agents are sent waits for a mark (rounds_state_uv.h): either a save, or a read of the leader's key that was begun after
 * the decision. A leader whose lease has run out by its own clock stops deciding by itself.
 *
 * An unknown outcome (a time-out) of a save ends the leadership: that save may be carried out later, over a newer one. The
 * next term fences it. Without a majority of etcd nothing is decided, and leadership ends with the lease.
 *
 * How long no crund leads, when the host of the leader is lost (measured with three members on a busy machine, 101 times: 1.4 s in the
 * median, 3.0 s at the longest):
 *   - 1.2 to 1.5 s until a follower takes the leader for lost: six ticks of leader_silence.h, and a look at the key. Less would
 *     depose leaders that are only slow.
 *   - At the same time, if the leader of etcd was on that host: its election, 1 to 2 s (twice its --election-timeout of 1 s,
 *     and seldom a second round), 0.2 s for a last ping, and up to 0.4 s for a request that was waiting for a lost member
 *     (etcd_members.h).
 *   - Milliseconds for the transaction that takes the key, and for reading the jobs.
 * The lease is longer than an election of etcd. Otherwise the crunds that are left would need a new one after it, and a leader would
 * be deposed whenever etcd elects. Its end counts only where no follower can find out that the leader is lost: one
 * that has never answered there. It is renewed so often that five of its six parts are left when etcd stops answering.
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
    ETCD_DEFER_MS = 3000,    /* etcd_leader_defer(): a restart of all workers costs more */
    ETCD_ADDRESS_SIZE = 280, /* HOST:PORT with the NUL */
    ETCD_CHUNK_SIZE = 400 << 10,
    ETCD_LOAD_MAX = 256 << 20, /* bytes of all jobs */
    ETCD_DISPROVED_MAX = 8,
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
    ETCD_WORK_WITHDRAW, /* of the key of the process that this crund was started in the place of */
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
    int64_t dead_revision; /* the crund whose key had it has ended; 0: none */
    uint64_t suspected_id; /* of that crund */
    bool is_view_old;      /* the key has not been read since the suspicion */
    bool is_look_old;      /* the look under way was begun before the suspicion */
    /* Crunds that led again after they had been suspected: their address refuses connections from here while they live. */
    uint64_t disproved[ETCD_DISPROVED_MAX];
    size_t n_disproved;
    bool has_looked; /* at least once */
    int64_t
        predecessor_revision; /* the key that a process at our address had before this one was started; 0: none */
    bool wants_campaign;      /* with the next lease, if there is none */
    uint64_t retired_until_ns; /* it does not lead before, see etcd_leader_retire() */
    bool wants_withdraw; /* the predecessor's key is to go: others cannot see that its process has ended */

    /* The crund with the keys of jobs is to be the first one that takes the leader's place; see etcd_leader_defer(). */
    bool defers;
    uint64_t answers_ns;                       /* since when etcd answers; 0: it does not */
    uint64_t vacant_ns, refused_ns, silent_ns; /* since when the place may be taken for that reason; 0: not */
    uint64_t answered_id;                      /* of the crund that has answered here as the leader */

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

/* The kernel at this address refuses connections: the process that leads there has ended, unless its address cannot be reached from
 * here. The latter shows when it leads again: from then on the end of its lease alone counts, as two crunds that refuse each other
 * would otherwise depose each other without end. After ETCD_DISPROVED_MAX of them that holds for all. */
void etcd_leader_suspect(struct etcd_leader *l, const char *address, uint64_t now_ns);

/* The process that leads at this address answers nothing any more, and etcd answers: its host is lost, or cut off. To be called for each
 * answer of etcd while that is so. True: this crund takes its place from now on. Only the place of one that has
 * answered here as the leader: one that is replaced by mistake replaces its successor only after that one has answered it. */
bool etcd_leader_presume_lost(struct etcd_leader *l, const char *address, uint64_t now_ns);

/* The kernel at this address accepts connections, or the process there has sent something: the two above have to begin anew. */
void etcd_leader_connected(struct etcd_leader *l, const char *address);
void etcd_leader_answered(struct etcd_leader *l, const char *address);

/* The keys of jobs are at another crund, which is to be the first that takes the leader's place: while that is so, this one takes it when it
 * has been vacant, refused connections or been silent for ETCD_DEFER_MS, in which etcd has answered. Where it was itself started in the
 * place of the leader, it removes the key: nobody is refused at its address any more, so no other one can know. */
void etcd_leader_defer(struct etcd_leader *l, bool defers);

/* What has become of this crund since the last call. */
enum etcd_change etcd_leader_change(struct etcd_leader *l);

/* LEADING. To be saved, or removed, with the next batch; head and nodes are copied. Without memory: deposed. */
void etcd_leader_save(struct etcd_leader *l, uint64_t instance, const void *head, size_t n_head,
                      const void *nodes, size_t n_nodes);
void etcd_leader_forget(struct etcd_leader *l, uint64_t instance);

/* LEADING. What has changed cannot be saved, for want of memory: deposed. Otherwise a check would complete the mark of the change. */
void etcd_leader_resign(struct etcd_leader *l);

/* LEADING. This process cannot decide about a job there, and would take its state from it: deposed for a minute. Its key is removed, so that
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
