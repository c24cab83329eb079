#pragma once

/*
 * One generation of workers as crun holds it: the guardian that has them, the notice sockets, and the worker
 * store if it is served here. Begins with everything started, ends when nothing of it is left.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

struct guardian_order;
struct guardian_report;
struct worker_memory;
struct death_notice;
struct logs;
struct agent_config;
struct worker_notice;
struct output;
struct server;
struct rank_assignment;

/* What generations of a job share, and whom they tell. */
struct generation_host {
    uv_loop_t *loop;
    const struct agent_config *config;
    const struct worker_memory *worker_memory;
    struct logs *logs;
    struct output *output;
    const struct death_notice
        *death_notice; /* of the next generation's guardian; NULL: it has nobody to tell */
    void (*on_report)(void *data, const struct guardian_report *report);
    void (*on_lost)(void *data); /* once, if the link ends before GUARDIAN_EMPTY */
    void (*on_ready)(void *data, int worker, uint32_t generation); /* NOTICE_READY of a worker */
    void *data;
};

struct generation {
    const struct generation_host *host;
    uint32_t number;
    char *attempt_dir;     /* NULL: no files */
    struct server *server; /* the worker store, if this node serves it for this generation alone; or NULL */
    int held_port;     /* a socket that keeps a port free for a store that the first worker opens; or -1 */
    int *notice_fds;   /* our ends, one for each worker */
    struct ear **ears; /* what listens to them, where workers may be replaced; NULL: nobody listens */
    int n_workers;
    pid_t guardian; /* 0 once waited for */
    int link;       /* -1 until it exists */
    bool empty;     /* the guardian said so */
    uv_poll_t poll; /* of the link */
};

/*
 * Starts a generation in its place on the host's loop; the host must live as long. Takes over store, which
 * may be NULL. Returns 0, or -errno with a sentence said on stderr and nothing left behind; the store then
 * is still the caller's.
 */
int generation_create(struct generation **ret, const struct generation_host *host, uint32_t number,
                      int restarts, const struct rank_assignment *place, struct server *store);

void generation_order(struct generation *g, const struct guardian_order *order);

/* Stops the store, where it is served here: whoever fixed its port needs that for the next one. */
void generation_close_store(struct generation *g);

/*
 * Makes it the next generation, in the same place but for the store, which it takes over: a new process for each of
 * the workers that are `lost` (their processes have been waited for), and the others are told. The guardian
 * reports the new ones as it did the first. Returns 0, or -errno with a sentence said: some of it may have been
 * done, the workers have to be stopped.
 */
int generation_replace(struct generation *g, uint32_t number, int restarts,
                       const struct rank_assignment *place, struct server *store, const bool *lost,
                       int first_lost);

/* To one worker; dropped when it does not read. */
void generation_notify(struct generation *g, int worker, const struct worker_notice *notice);

/* Stops the store and closes everything. Frees itself when libuv has closed its handles. NULL is fine. */
void generation_destroy(struct generation *g);
