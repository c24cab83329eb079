#pragma once

/*
 * A generation of workers on crun's side: the guardian, the notice sockets, and the worker store if served here.
 * Created with all workers ordered, destroyed when no process of the generation is left.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "launcher/supervise/guardian_os.h"
#include "base/buf.h"

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

/* Common data of the generations of a job, and their callbacks. */
struct generation_host {
    uv_loop_t *loop;
    const struct agent_config *config;
    const struct worker_memory *worker_memory;
    struct guardian_job guardians;
    struct output *output;
    const struct death_notice
        *death_notice;         /* for the guardian in the next generation; NULL: no rendezvous */
    uint64_t lease_end_ns;     /* end of the time for workers, by boot_ns(); 0: no limit */
    bool warm;                 /* workers are forked by a zygote, if possible */
    struct kept_guardian kept; /* for the next generation to take */
    void (*on_report)(void *data, const struct guardian_report *report);
    void (*on_lost)(void *data); /* once, if the link ends before GUARDIAN_EMPTY */
    void (*on_notice)(void *data, int worker, const struct worker_notice *notice); /* from a worker */
    void *data;
};

struct generation_worker {
    int notice_fd;                    /* crun's end; -1: none */
    bool keeps_store;                 /* the last NOTICE_READY asked to keep the store (READY_KEEPS_STORE) */
    struct notice_listener *listener; /* of the notice socket, where workers may be replaced; else NULL */
};

struct generation {
    struct generation_host *host;
    uint32_t number;
    char *attempt_dir;     /* NULL: no files */
    bool has_flat_files;   /* see struct plan */
    struct server *server; /* the worker store, if served here for the generation alone; or NULL */
    int held_port;         /* a socket that keeps a port free for the first worker's store; or -1 */
    pid_t guardian;        /* 0 once reaped */
    int link;              /* -1: none yet */
    struct buf
        unsent; /* orders that wait: the guardian has not read earlier ones, and the link holds a few hundred */
    struct worker_starts *starts; /* contents of the orders of kind GUARDIAN_START among them; or NULL */
    bool empty;                   /* the guardian has reported GUARDIAN_EMPTY */
    bool is_guardian_ending;      /* GUARDIAN_EMPTY announced the end of the guardian */
    uv_poll_t poll;               /* of the link */
    int n_workers;
    struct generation_worker workers[];
};

/*
 * Starts a generation with the ranks of the assignment on the host's loop; the host must live as long. The generation takes
 * folders and descriptors from files, and owns store (may be NULL) afterwards. Returns 0, or -errno with a line logged and
 * nothing left behind; after an error the caller still owns the store.
 */
int generation_create(struct generation **ret, struct generation_host *host, uint32_t number, int restarts,
                      const struct rank_assignment *assignment, struct attempt_files *files,
                      struct server *store);

/* Sends an order to the guardian, behind all orders before it. */
void generation_order(struct generation *g, const struct guardian_order *order);

/* Sends the changed host->lease_end_ns to the guardian. */
void generation_pass_lease_on(struct generation *g);

/* Stops the store, if served here: the next store may need the port. */
void generation_close_store(struct generation *g);

/*
 * Turns g into the next generation, with the ranks of the assignment and with store, owned by g afterwards (NULL: another
 * node serves the store). Each of the `failed` workers (already reaped) gets a new process, and the others get a notice about
 * `cause_rank`. The guardian reports the new processes like the first. Returns 0, or -errno with a line logged: a part of the
 * work may have been done, so the workers have to be stopped.
 */
int generation_replace(struct generation *g, uint32_t number, int restarts,
                       const struct rank_assignment *assignment, struct attempt_files *files,
                       struct server *store, const bool *failed, int cause_rank);

/* The job has ended: the guardian may end meanwhile, if no worker is left. */
void generation_dismiss_guardian(struct generation *g);

/* The job has ended: ends the guardian without a generation, and waits for its end. */
void generation_end_guardian(struct kept_guardian *kept);

/* Sends a notice to a worker; dropped when the worker does not read. */
void generation_notify(struct generation *g, int worker, const struct worker_notice *notice);

/* Stops the store and closes everything. Frees g when libuv has closed the handles. NULL is fine. */
void generation_destroy(struct generation *g);
