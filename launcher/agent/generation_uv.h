#pragma once

/*
 * One generation of workers on crun's side: the guardian, the notice sockets, and the worker store if it is served here.
 * Created with all workers ordered, destroyed when no process of it is left.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/supervise/spawn_guardian_os.h"

struct guardian_order;
struct guardian_report;
struct worker_memory;
struct death_notice;
struct agent_config;
struct worker_notice;
struct output;
struct attempt_files;
struct server;
struct rank_assignment;

/* The guardian of the job, between two generations. */
struct kept_guardian {
    pid_t pid; /* 0: none */
    int link;
};

/* What the generations of a job share, and their callbacks. */
struct generation_host {
    uv_loop_t *loop;
    const struct agent_config *config;
    const struct worker_memory *worker_memory;
    struct spawn_guardian_job guardians;
    struct output *output;
    const struct death_notice
        *death_notice;          /* for the guardian in the next generation; NULL: no rendezvous */
    uint64_t lease_end_ns;      /* no worker may run from then on, by boot_ns(); 0: no limit */
    bool warm;                  /* workers are forked by a zygote, if that is possible */
    struct kept_guardian *kept; /* for the next generation to take */
    void (*on_report)(void *data, const struct guardian_report *report);
    void (*on_lost)(void *data); /* once, if the link ends before GUARDIAN_EMPTY */
    void (*on_notice)(void *data, int worker, const struct worker_notice *notice); /* from a worker */
    void *data;
};

struct generation {
    const struct generation_host *host;
    uint32_t number;
    char *attempt_dir;     /* NULL: no files */
    bool has_flat_files;   /* see struct plan */
    struct server *server; /* the worker store, if this node serves it for this generation alone; or NULL */
    int held_port;     /* a socket that keeps a port free for a store that the first worker opens; or -1 */
    int *notice_fds;   /* crun's ends, one for each worker */
    bool *keeps_store; /* per worker: its last NOTICE_READY asked for it (READY_KEEPS_STORE) */
    struct notice_listener **listeners; /* of the notice sockets, where workers may be replaced; else NULL */
    int n_workers;
    pid_t guardian;             /* 0 once reaped */
    int link;                   /* -1 until it exists */
    struct order_queue *unsent; /* what the link did not take yet; NULL: nothing */
    bool empty;                 /* the guardian has reported it */
    bool is_guardian_ending;    /* it has reported that, too */
    uv_poll_t poll;             /* of the link */
};

/*
 * Starts a generation with these ranks on the host's loop; the host must live as long. It takes what it needs from files,
 * and owns store afterwards, which may be NULL. Returns 0, or -errno with a line logged and nothing left behind; the
 * caller then still owns the store.
 */
int generation_create(struct generation **ret, const struct generation_host *host, uint32_t number,
                      int restarts, const struct rank_assignment *assignment, struct attempt_files *files,
                      struct server *store);

/* Sends an order to the guardian, behind all orders before it. */
void generation_order(struct generation *g, const struct guardian_order *order);

/* Lets the guardian know host->lease_end_ns, which has changed. */
void generation_pass_lease_on(struct generation *g);

/* Stops the store, where it is served here: the next one may need its port. */
void generation_close_store(struct generation *g);

/* Moves the store out of the generation, so that the next one can have it; NULL: it is not served here. The caller owns
 * it. */
struct server *generation_take_store(struct generation *g);

/*
 * Makes it the next generation with the ranks of the assignment and this store, which it owns afterwards (NULL: another
 * node serves it): a new process for each of the `failed` workers (their processes have been reaped), and a notice to
 * the others about `cause_rank`. The guardian reports the new ones as it did the first. Returns 0, or -errno with a line logged: part of it may have been done, so the workers have to be
 * stopped.
 */
int generation_replace(struct generation *g, uint32_t number, int restarts,
                       const struct rank_assignment *assignment, struct attempt_files *files,
                       struct server *store, const bool *failed, int cause_rank);

/* The job has ended: the guardian may end meanwhile, if no worker is left. */
void generation_dismiss_guardian(struct generation *g);

/* The job has ended: ends the guardian that no generation has, waiting for it. */
void generation_end_guardian(struct kept_guardian *kept);

/* Sends a notice to one worker; dropped when it does not read. */
void generation_notify(struct generation *g, int worker, const struct worker_notice *notice);

/* Stops the store and closes everything. Frees itself when libuv has closed its handles. NULL is fine. */
void generation_destroy(struct generation *g);
