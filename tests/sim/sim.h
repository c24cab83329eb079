#pragma once

/*
 * The simulator: a rendezvous and many agents, with the shipping cores (rounds, session) in them, on a
 * hostile network in virtual time. A seed decides everything. The rendezvous is one crund with a state directory, or several
 * in front of one etcd, with the core that chooses their leader.
 *
 *   scenario.c   what a seed means: sizes, time-outs, faults and their times
 *   network.c    connections: order is kept, and that is all; delay, partitions, half-open ends
 *   daemon.c     a crund: its core, its crashes
 *   daemon_disk.c, daemon_etcd.c   where its state is
 *   etcd_link.c  etcd, and the way there; also for leaders/main.c
 *   agent.c      one node: an agent process and its core
 *   host_cut.c   networks between the workers of two nodes that are cut
 *   workers.c    the workers of a node: the shipping group machine, and processes that do what they like
 *   check.c      what must never happen, and what must be in the end
 *   sim.c        one run
 *   main.c       the program
 *
 * Every party has its own clock, and none of them is right.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "launcher/supervise/worker_group.h"
#include "proto/frame.h"
#include "rendezvous/rounds/rounds.h"
#include "rendezvous/session/session.h"
#include "tests/sim/etcd_link.h"
#include "tests/sim/random.h"
#include "tests/sim/schedule.h"

#define SIM_MS UINT64_C(1000000)
#define SIM_S UINT64_C(1000000000)

enum { SIM_JOBS_MAX = 2, SIM_WORKERS_MAX = 3, SIM_DAEMONS_MAX = 4, SIM_TOLD_MAX = 64, SIM_HOST_CUTS_MAX = 4 };

enum sim_moment {
    SIM_PUMP,          /* who: connection, detail: direction */
    SIM_BREAK,         /* who: connection, detail: end; its kernel gives up */
    SIM_CONNECTED,     /* who: connection: the agent's end is established */
    SIM_REFUSED,       /* who: connection: nobody listens there */
    SIM_AGENT_TIMER,   /* who: agent, detail: life */
    SIM_AGENT_BOOT,    /* who: agent */
    SIM_AGENT_READY,   /* who: agent, detail: life; it has opened its first store */
    SIM_GROUP_TIMER,   /* who: agent, detail: serial number of the timer */
    SIM_START_FILES,   /* the same of a start; its files are made */
    SIM_GUARDIAN_IDLE, /* the same of a guardian: the last worker has ended */
    SIM_GUARDIAN_LOST,
    SIM_ORPHANS_END,
    SIM_WORKER_STARTED, /* who: agent, detail: serial number of the process */
    SIM_WORKER_JOINING, /* and the generation, from bit 32; so has the next one */
    SIM_WORKER_READY,   /* and the generation, from bit 32 */
    SIM_WORKER_FAIL,
    SIM_WORKER_DONE,
    SIM_WORKER_DIE,   /* by a signal */
    SIM_LEASE,        /* who: agent, detail: life; its guardian kills all workers when that is due */
    SIM_AGENT_EXIT,   /* who: agent, detail: life */
    SIM_DAEMON_TIMER, /* who: daemon, detail: life */
    SIM_DAEMON_BOOT,  /* who: daemon */
    SIM_DISK,         /* who: daemon, detail: life; a batch is on disk */
    SIM_ETCD_TICK,    /* who: daemon, detail: life */
    SIM_ETCD_APPLY,   /* who: daemon, detail: number of its request, which arrives */
    SIM_ETCD_ANSWER,  /* the same, and is answered */
    SIM_ETCD_EXPIRE,  /* etcd ends leases */
    SIM_FAULT,
    SIM_HOST_CUT, /* who: index of the cut, which begins */
    SIM_CUT_NOTICE, /* who: agent, detail: index of the world, see host_cut.c; its workers notice cuts that are there */
    SIM_CUT_FAIL,        /* the same; one that is noticed ends a worker */
    SIM_CHECK_NOTICE,    /* who: agent that failed, detail: index of the world */
    SIM_CHECK_EXCLUSION, /* detail: index of a world: none before it is left */
    SIM_CHECK_CALM,      /* everybody has to be in a world now, or ended */
    SIM_MOMENT_COUNT
};

enum sim_fault {
    FAULT_WORKER,      /* a worker fails */
    FAULT_AGENT_KILL,  /* an agent process dies, its kernel says so */
    FAULT_NODE_LOSS,   /* a machine is gone, nobody says so */
    FAULT_LEAVE,       /* an agent is told to go */
    FAULT_AGENT_PAUSE, /* stopped, and continued later */
    FAULT_DAEMON_PAUSE,
    FAULT_CUT,            /* a connection breaks, at both ends or at one */
    FAULT_PARTITION,      /* nothing passes between an agent and the rendezvous, or in one direction */
    FAULT_PARTITION_MANY, /* the same for a part of all agents */
    FAULT_SLOW,           /* a while of large delays */
    FAULT_DAEMON_CRASH,   /* restarted with its state */
    FAULT_DAEMON_AMNESIA, /* restarted without */
    FAULT_BOOT,           /* another agent comes */
    FAULT_DRAIN,
    FAULT_ROLLBACK, /* the daemon is restarted with older files than it wrote */
    FAULT_HOSTILE,  /* a hello that no agent has sent, with any numbers in it */
    /* With several daemons in front of etcd. */
    FAULT_PAIR,            /* nothing passes between an agent and one daemon, or in one direction */
    FAULT_DAEMON_ISOLATED, /* nothing passes between one daemon and all agents, and perhaps the other daemons */
    FAULT_ETCD_CUT,        /* one daemon does not reach etcd */
    FAULT_ETCD_DOWN,       /* etcd has no majority */
    FAULT_ETCD_SLOW,       /* a part of all requests is lost or late, for a while */
    FAULT_ETCD_FULL,       /* etcd refuses to write, and renews leases */
    FAULT_COUNT_DRAWN,
    FAULT_HOST_CUT = FAULT_COUNT_DRAWN, /* planned: host_cut.c */
    FAULT_COUNT,
    FAULT_COUNT_SINGLE = FAULT_PAIR
};

/* A party's clock: begins anywhere, and is fast or slow. */
struct sim_clock {
    uint64_t offset_ns;
    int64_t ppm;
};

static inline uint64_t sim_clock_at(const struct sim_clock *c, uint64_t now_ns)
{
    return c->offset_ns + now_ns + (uint64_t)((int64_t)(now_ns / 1000) * c->ppm / 1000);
}

/* The earliest time at which the clock shows that or more. */
static inline uint64_t sim_clock_when(const struct sim_clock *c, uint64_t clock_ns)
{
    uint64_t since_ns = clock_ns > c->offset_ns ? clock_ns - c->offset_ns : 0;
    uint64_t now_ns = (uint64_t)((__int128)since_ns * 1000000 / (1000000 + c->ppm));

    while (sim_clock_at(c, now_ns) < clock_ns)
        now_ns += 1000;
    return now_ns;
}

struct sim_scenario {
    unsigned n_agents; /* nodes there can be */
    unsigned n_jobs;
    unsigned n_daemons;
    bool has_etcd; /* the daemons keep their state there */
    bool suspends; /* where a daemon is paused, its machine may be, so that its clock stands still */
    struct session_params params;
    uint64_t latency_min_ns, latency_max_ns;
    unsigned spike_percent; /* of messages that come much later */
    int64_t clock_ppm;      /* at most that much are clocks fast or slow */
    uint32_t own_lease_ms;  /* of the daemon, for jobs that leave it to that */
    bool hints;             /* agents ask for the group rank of their number */
    bool mixes_releases;    /* every other agent has a smaller default of the node timeout */
    bool codec;             /* messages pass through frames and JSON, in slices */
    unsigned fault_percent[FAULT_COUNT];
    uint64_t fault_every_ns;
    uint64_t calm_ns;              /* no faults from then on */
    uint64_t finish_ns;            /* workers end well from then on */
    uint64_t late_faults_ns;       /* faults again from finish_ns until then; 0: none */
    uint64_t end_ns;               /* everybody has to be gone */
    unsigned late_failure_percent; /* of groups that fail when others are done already */
    uint64_t finish_spread_ns;     /* between the first that are done and the last */
    uint64_t cutoff_ns;
    bool has_default_cutoff;
    uint64_t disk_max_ns;  /* how long a batch of saved jobs takes to reach the disk; 0: no time */
    uint64_t stop_max_ns;  /* how long workers take to stop on SIGTERM */
    uint64_t grace_ns;     /* between SIGTERM and SIGKILL */
    uint64_t pause_max_ns; /* between short generations */
    uint64_t rejoin_ns;
    uint64_t stop_limit_ns;   /* from the end of a generation until a node is ready for the next one */
    bool replace;             /* workers stay when another one fails */
    unsigned unready_percent; /* of workers that do not get ready in a generation */
    unsigned ignore_term_percent, orphan_percent;
    unsigned stuck_percent; /* of workers that SIGKILL does not end at once */
    unsigned exec_fail_percent, start_fail_percent;
    unsigned guardian_percent;     /* of failures: the guardian is killed */
    unsigned return_percent;       /* of killed agents that come back */
    unsigned death_notice_percent; /* of killed agents whose guardian says so */
};

enum sim_end { SIM_AGENT_END, SIM_DAEMON_END }; /* also directions: towards that end */

enum sim_message_kind {
    MESSAGE_GREETING,
    MESSAGE_BYTES,
    MESSAGE_ECHO, /* bytes as they are */
    MESSAGE_HELLO,
    MESSAGE_REPORT,
    MESSAGE_ALIVE,
    MESSAGE_RENEW,
    MESSAGE_RENEWED,
    MESSAGE_VIEW,
    MESSAGE_OPENED,
    MESSAGE_FIN, /* size 0: in order, else a reset */
};

struct sim_message {
    struct sim_message *next;
    enum sim_message_kind kind;
    uint64_t at_ns, sent_ns;
    bool stuck;     /* it was blocked, and has to be sent again */
    size_t size;    /* of MESSAGE_BYTES */
    uint8_t data[]; /* bytes, or the struct that the kind says */
};

struct sim_connection {
    unsigned number;
    unsigned agent;
    unsigned daemon;
    uint64_t agent_life;
    bool open[2];
    bool vanished[2]; /* not open, and its machine is gone */
    bool pumping[2];
    bool broken;                            /* the end of one side is scheduled */
    struct sim_message *first[2], *last[2]; /* by direction */
    uint64_t last_ns[2];
    struct rounds_conn session; /* the daemon's part */
    struct session_hello
        *death_notice;  /* the guardian of an agent that was killed says it; NULL: it is an agent's */
    struct buf held;    /* sim_held that wait for the state to be durable, in order */
    uint64_t held_mark; /* until that is */
    bool closing;       /* the daemon's end is closed after them */
    struct frame_reader reader[2]; /* with codec: at that end */
    struct buf in[2];
};

/* What the workers of a node do, for the checks. */
enum sim_part { PART_NONE, PART_RUNNING, PART_STOPPING, PART_ENDED };

struct sim_worker {
    uint64_t serial;     /* 0: there is no process */
    uint32_t generation; /* it was started in, or it has joined */
    bool alive;          /* its start has been reported */
    bool ignores_term, is_stuck, killed;
};

/* The worker group of a node: the machine, a guardian, and processes. */
struct sim_node {
    struct worker_group machine;
    struct sim_worker workers[SIM_WORKERS_MAX];
    uint64_t timer;    /* serial number, as those that follow; 0: none */
    uint64_t files;    /* being made for a start */
    uint64_t guardian; /* until it has reported that nothing is left */
    bool is_replacing, selected[SIM_WORKERS_MAX];
    bool term, kill; /* were ordered: for workers that start afterwards */
    bool guardian_lost, start_cancelled, gave_up;
    bool had_stuck; /* a worker of this generation does not end on SIGKILL at once */
    bool is_done;   /* the machine has reported it */
    bool orphans_seen, orphans_ignore;
    unsigned n_orphans;
    uint64_t stop_ns; /* begin of the last stop */
};

struct sim_agent {
    bool alive;     /* the process */
    bool ended;     /* it was told to, and exits soon */
    bool succeeded; /* a life of it ended well: its work is done */
    uint64_t life;
    uint64_t paused_until_ns;
    uint64_t blocked_until_ns[2]; /* by direction */
    uint64_t pair_blocked_until_ns[SIM_DAEMONS_MAX][2];
    unsigned daemon, n_dials;     /* the one that it has dialled last */
    uint64_t seen_term;           /* the highest of all views */
    uint64_t disturbed_until_ns;  /* what goes wrong before may be the fault of a fault */
    uint64_t endangered_until_ns; /* it may be taken for dead before */
    uint64_t contact_ns;          /* when the rendezvous was last heard; or the process began */
    struct sim_clock clock;
    uint64_t timer_ns;    /* scheduled for then; 0: not */
    uint64_t guardian_ns; /* its guardian kills the workers then; 0: never */
    struct session session;
    int64_t connection; /* -1: none */
    struct sim_node node;
    uint64_t n_serials; /* of all its lives */
    enum sim_part part;
    int64_t world; /* of the group; -1: none */
    struct session_cause failure;
    int64_t last_generation;
    uint32_t restarts, changes; /* charged to the job at its last start */
    uint64_t own_instance;      /* of the job that it has run last */
    uint64_t view_instance;     /* of the job in its last view */
    uint32_t cut_from;          /* as in session_report, of its present workers */
    int64_t failed_world;       /* last world in which a worker of this node failed by itself */
    int64_t left_world;         /* world in which it left */
};

struct sim_member {
    unsigned agent;
    uint64_t life;
    bool present, done, failed;
    bool lost;   /* the rendezvous has declared it lost, with reason */
    bool victim; /* failed because of another member's death */
    uint32_t rank_base, n_workers, role_rank_base;
    bool odd_role;
    unsigned cut_from; /* 1 and the agent whose workers do not answer its own; 0: none */
    uint64_t cut_ns;   /* when that was noticed */
};

/* Nothing passes between the workers of two agents. */
struct sim_host_cut {
    unsigned agents[2];
    uint64_t from_ns, until_ns;
    bool has_one_direction; /* the first agent's workers alone notice it */
};

/* One generation, as its members were told. */
struct sim_world {
    uint64_t instance;
    int64_t generation;
    uint32_t group_world_size, world_size;
    uint32_t restarts, changes;
    char master_addr[64];
    uint16_t master_port;
    struct sim_member *members; /* by group rank */
    bool settled;
    unsigned job;
    uint64_t formed_ns;     /* when its first member started */
    uint64_t death_ns;      /* when a member's process died first; 0: none */
    bool heard_after_death; /* what a member had sent before it died arrived afterwards */
};

/* A job's state on its way to the disk. */
struct sim_write {
    bool pending;
    uint64_t mark;
    struct buf text; /* empty: the job is forgotten */
};

/* One instance of a job. */
struct sim_file {
    uint64_t instance;
    struct buf disk; /* empty: it is not there */
    struct buf old;  /* what it was some time before */
    struct sim_write waiting, writing;
};

/* What the agents of one instance of a job were told in the end. */
struct sim_verdict {
    uint64_t instance;
    enum session_verdict verdict;
    uint32_t stop_signal;
    struct session_cause cause;
    uint64_t at_ns; /* when the first agent got it */
};

/* When the result of a job was decided. */
struct sim_closing {
    uint64_t instance, at_ns;
};

/* Since when a job of the daemon has been in this situation. */
struct sim_progress {
    uint64_t instance;
    int situation;
    int64_t generation;
    uint64_t since_ns;
};

/* What agents know, or may know, of a job that was saved before. */
struct sim_told {
    uint64_t instance;
    int64_t generation;
    uint32_t restarts, changes;
    bool
        has_charges; /* a job that gathers takes over what nodes of a lost instance know, and is saved when it forms */
    bool is_over;
    bool is_forgotten; /* a leader has decided so */
};

/* A message that waits until the state is durable. */
struct sim_held {
    enum sim_message_kind kind; /* MESSAGE_VIEW, MESSAGE_RENEWED */
    uint32_t number;
    struct session_view view;
    struct sim_told told;
};

struct sim_daemon {
    bool alive;
    bool leads; /* its core decides */
    struct rounds rounds;
    uint64_t life;
    uint64_t paused_until_ns;
    struct sim_clock clock;
    uint64_t timer_ns;
    unsigned crash_after;   /* that many actions; 0: not */
    bool crash_keeps_state; /* whether the crash that is due then leaves the disk */
    uint64_t up_ns;         /* since when the process runs */
    uint64_t boot_ns;       /* the same, or it has become the leader */
    struct sim_progress progress[2 * SIM_JOBS_MAX];
    uint64_t blocked_until_ns[2]; /* by direction, from and to all agents */
    /* Its directory. */
    struct sim_file *files;
    size_t n_files, files_capacity;
    uint64_t mark; /* of the last save */
    bool disk_busy;
    uint64_t disk_since_ns; /* by its clock */
    /* Its etcd. */
    struct etcd_leader leader;
    uint64_t tick_ns;
    uint64_t etcd_cut_until_ns;
    uint64_t etcd_ns,
        etcd_steady_ns; /* the last answer of etcd, and since when they come one after another */
    uint64_t orphaned_ns,
        orphaned_by; /* since when it follows that process, which has ended; 0: it does not */
    int64_t term;    /* of its last leadership */
};

/* All daemons together. */
struct sim_rendezvous {
    bool keeps_state; /* the last crash left the state */
    bool amnesia;     /* state, or a part of it, was lost at least once */
    bool rolled_back; /* a daemon has been started with an old state at least once */
    uint64_t disturbed_until_ns;
    struct sim_told told[SIM_TOLD_MAX];
    size_t n_told;
    int64_t told_term; /* the highest */
    uint64_t etcd_down_until_ns, etcd_slow_until_ns, etcd_full_until_ns;
};

struct sim {
    uint64_t seed;
    bool trace;
    bool failed;
    char failure[1024];
    uint64_t now_ns;
    uint64_t n_events;
    struct random random;
    struct random cut_random;
    struct schedule schedule;
    struct sim_scenario scenario;
    struct sim_host_cut host_cuts[SIM_HOST_CUTS_MAX];
    unsigned n_host_cuts;
    struct sim_agent *agents;
    struct sim_daemon daemons[SIM_DAEMONS_MAX];
    struct sim_rendezvous rendezvous;
    struct etcd_link etcd;
    struct sim_connection **connections;
    size_t n_connections, connections_capacity;
    struct sim_world *worlds;
    size_t n_worlds, worlds_capacity;
    struct sim_verdict verdicts[64];
    size_t n_verdicts;
    struct sim_closing closings[64];
    size_t n_closings;
    uint64_t n_faults[FAULT_COUNT];
    uint64_t n_generations, n_terms;
    uint64_t slow_until_ns;
    uint64_t fenced_ns; /* the last end of a lease, at its agent */
    uint64_t n_nonces;
};

/* sim.c */
void *sim_allocate(size_t size);
void sim_trace(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One run; true: nothing was wrong. n_agents 0: as the seed says. has_etcd: several daemons with their state there. */
bool sim_run(struct sim *sim, uint64_t seed, unsigned n_agents, bool has_etcd, bool trace);
void sim_finish(struct sim *sim);

/* scenario.c */
void scenario_choose(struct sim *sim, unsigned n_agents, bool has_etcd);
void scenario_begin(struct sim *sim);
void scenario_fault(struct sim *sim);
const char *sim_fault_name(unsigned fault);
struct sim_clock scenario_clock(struct sim *sim);

/* host_cut.c */
void host_cut_plan(struct sim *sim);
void host_cut_moment(struct sim *sim, const struct moment *m);
void host_cut_connect(struct sim *sim, unsigned agent); /* its generation begins */
/* A node is left out for a cut. */
bool host_cut_is_cause(const struct session_cause *c);
void host_cut_check_left_out(struct sim *sim, const struct sim_world *w, const struct rounds_job *job);
void host_cut_check_charged(struct sim *sim, struct sim_world *w, const struct sim_member *m,
                            const struct rounds_job *job);
void host_cut_check_formed(struct sim *sim, const struct rounds_job *job);
void host_cut_check_return(struct sim *sim, const struct sim_daemon *d, const struct rounds_job *job);
bool host_cut_is_active(const struct sim *sim, unsigned job);
bool host_cut_leaves_out(struct sim *sim, unsigned agent);

/* network.c */
void network_dial(struct sim *sim, unsigned agent);
void network_dial_death_notice(struct sim *sim, unsigned agent, const struct session_hello *hello,
                               uint64_t delay_ns);
void network_send_death_notice(struct sim *sim, unsigned connection);
/* Until when nothing passes between them, in that direction. */
uint64_t network_blocked_until_ns(const struct sim *sim, unsigned agent, unsigned daemon, enum sim_end to);
void network_send(struct sim *sim, unsigned connection, enum sim_end to, enum sim_message_kind kind,
                  const void *data, size_t size);
void network_close(struct sim *sim, unsigned connection, enum sim_end end);  /* after what was sent */
void network_vanish(struct sim *sim, unsigned connection, enum sim_end end); /* without a message */
void network_pump(struct sim *sim, unsigned connection, enum sim_end to);
void network_break(struct sim *sim, unsigned connection, enum sim_end end);
uint64_t network_slack_ns(struct sim *sim, unsigned connection, enum sim_end at);
void network_finish(struct sim *sim);

/* daemon.c */
void daemon_boot(struct sim *sim, struct sim_daemon *d);
void daemon_crash(struct sim *sim, struct sim_daemon *d, bool keeps_state);
void daemon_roll_back(struct sim *sim, struct sim_daemon *d);
/* As rounds_shell_postpone(). */
void daemon_postpone(struct sim *sim, struct sim_daemon *d);
void daemon_timer(struct sim *sim, struct sim_daemon *d);
unsigned daemon_number(const struct sim *sim, const struct sim_daemon *d);
uint64_t daemon_clock(const struct sim *sim, const struct sim_daemon *d);
/* The one whose core decides; NULL: there is none. */
struct sim_daemon *daemon_leading(struct sim *sim);
/* It begins to decide, with what its state has, or ends to. */
void daemon_lead(struct sim *sim, struct sim_daemon *d);
void daemon_depose(struct sim *sim, struct sim_daemon *d);
/* A job of its state. */
void daemon_load(struct sim *sim, struct sim_daemon *d, const uint8_t *text, size_t size);
/* Everything up to that mark is durable. */
void daemon_release(struct sim *sim, struct sim_daemon *d, uint64_t done);
void daemon_receive(struct sim *sim, unsigned connection, const struct sim_message *message);
void daemon_lost(struct sim *sim, unsigned connection, bool orderly);
void daemon_finish(struct sim *sim);
unsigned daemon_job_of(const struct sim *sim, unsigned agent);

/* daemon_disk.c: as rounds_disk_uv.c. */
void daemon_disk_save(struct sim_daemon *d, const struct rounds_job *job, bool forget);
uint64_t daemon_disk_mark(const struct sim_daemon *d, const struct rounds_job *job); /* 0: it is on disk */
void daemon_disk_write(struct sim *sim, struct sim_daemon *d);
void daemon_disk_written(struct sim *sim, struct sim_daemon *d);
void daemon_disk_load(struct sim *sim, struct sim_daemon *d);
void daemon_disk_lose_writes(struct sim *sim, struct sim_daemon *d); /* the process dies */
void daemon_disk_lose(struct sim_daemon *d);
void daemon_disk_roll_back(struct sim_daemon *d);
void daemon_disk_finish(struct sim_daemon *d);

/* daemon_etcd.c: as rounds_etcd_uv.c. */
void daemon_etcd_boot(struct sim *sim, struct sim_daemon *d);
void daemon_etcd_save(struct sim_daemon *d, const struct rounds_job *job, bool forget);
void daemon_etcd_write(struct sim *sim, struct sim_daemon *d);
void daemon_etcd_load(struct sim *sim, struct sim_daemon *d);
void daemon_etcd_moment(struct sim *sim, const struct moment *m);

/* agent.c */
void agent_boot(struct sim *sim, unsigned agent);
void agent_kill(struct sim *sim, unsigned agent, bool silently);
void agent_leave(struct sim *sim, unsigned agent);
void agent_drain(struct sim *sim, unsigned agent);
void agent_timer(struct sim *sim, unsigned agent);
void agent_connected(struct sim *sim, unsigned connection);
void agent_receive(struct sim *sim, unsigned connection, const struct sim_message *message);
void agent_lost(struct sim *sim, unsigned connection, const char *why);
void agent_ready(struct sim *sim, unsigned agent);
/* What the group machine reports to the rendezvous. */
void agent_group_action(struct sim *sim, unsigned agent, const struct group_action *action);
void agent_exit(struct sim *sim, unsigned agent);
void agent_fail_later(struct sim *sim, unsigned agent, uint64_t delay_ns);
unsigned agent_n_workers(unsigned agent);
const char *agent_role(unsigned agent);

/* workers.c */
void workers_boot(struct sim *sim, unsigned agent);
void workers_end(struct sim_agent *a);
void workers_event(struct sim *sim, unsigned agent, struct group_event event);
void workers_moment(struct sim *sim, const struct moment *m);
void workers_fail(struct sim *sim, unsigned agent, uint64_t delay_ns);
void workers_fail_first(struct sim *sim, unsigned agent); /* at once */
/* The guardian's clock has reached the end of the lease. */
void workers_fence(struct sim *sim, unsigned agent);
/* Whether processes are there that nothing has killed. */
bool workers_run(const struct sim_agent *a);
/* The lease of the job; 0: none. */
void scenario_make_earlier(struct session_params *params); /* as an earlier release has them */
uint32_t scenario_lease_ms(const struct sim *sim);

/* check.c */
void violated(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void disturb(struct sim *sim, unsigned agent, uint64_t until_ns);
void disturb_all(struct sim *sim, uint64_t until_ns);
void disturb_daemon(struct sim *sim, uint64_t until_ns); /* this must not make a node look dead */
void check_start(struct sim *sim, unsigned agent, const struct session_view *view);
void check_end(struct sim *sim, unsigned agent, const struct session_view *view); /* NULL: it was not told */
void check_log(struct sim *sim, const struct rounds_job *job, unsigned log_kinds);
void check_notice(struct sim *sim, unsigned agent, unsigned world);
void check_calm(struct sim *sim);
void check_exclusion(struct sim *sim, unsigned world);
void check_progress(struct sim *sim, struct sim_daemon *d); /* after each step of the daemon */
void check_told(struct sim *sim, struct sim_daemon *d, const struct sim_told *told); /* sent to an agent */
void check_forgotten(struct sim *sim, uint64_t instance);                            /* decided */
void check_loaded(struct sim *sim, struct sim_daemon *d);
void check_followed(struct sim *sim, struct sim_daemon *d);
void check_all_ended(struct sim *sim);
void check_death(struct sim *sim, unsigned agent);
void check_received(struct sim *sim, unsigned agent, uint64_t life); /* by the rendezvous */
void check_finish(struct sim *sim);
