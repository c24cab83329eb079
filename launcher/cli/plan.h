#pragma once

/*
 * From a job and one generation of it to what each worker is started with: its arguments and its
 * environment (docs/torchrun-contract.md, sections 2 and 3). Pure.
 */

#include <stdbool.h>
#include <stdint.h>

#include "launcher/util/strlist.h"

struct rank_assignment;

/* The command all workers of a job share; found once, before anything starts. */
struct plan_command {
    struct strlist head; /* argv in front of the script: {"python3", "-u"}; or the program itself */
    const char *script;  /* subject to ${local_rank}; NULL when head is the whole command */
    char *const *args;   /* subject to ${local_rank}; NULL-terminated */
};

/* One generation of workers on one node. */
struct plan {
    int local_world_size;
    const struct rank_assignment *place;
    const char *role;
    const char *run_id;
    bool worker_has_store; /* crun serves none: the first worker opens it at the address of the place */
    uint32_t generation;   /* counts restarts and changes of membership; restart_count, restarts alone */
    int restart_count, max_restarts;
    int shutdown_timeout_s; /* from the request to stop to SIGKILL */
    bool virtual_local_rank;
    const char *signals;     /* text of --signals-to-handle */
    const char *attempt_dir; /* folder with one folder for each local rank, or NULL; see has_flat_files */
    bool has_flat_files; /* the names of the generation's files begin with attempt_dir, and are not in it */
    int notice_fd;       /* number of the notice socket in the worker */
    const char *local_addr; /* numeric, where ranks of other nodes reach this one; NULL: not given */
    const char
        *interface; /* name of the interface with local_addr, for gloo; NULL: gloo looks up its host's name */
    int state_fd;   /* number of the worker memory in the worker (proto/worker_memory.h); 0: none */
    int key_fd;     /* the same, of the job's key */
    int blocks_fd;  /* the same, for requests about blocks of state (proto/state_blocks.h) */
    bool seals;     /* libcrw encrypts data between hosts, if there is a key */
    char *const *environment; /* of crun itself */
};

/* Appends one worker's arguments; check out->failed. */
void plan_arguments(const struct plan_command *command, int local_rank, struct strlist *out);

enum {
    PLAN_E_DEVICES =
        1, /* --virtual-local-rank, and the list of visible devices has no entry for this worker */
};

/* Appends one worker's environment; check out->failed. */
int plan_environment(const struct plan *plan, int local_rank, struct strlist *out);

/* Whether workers of this plan get OMP_NUM_THREADS=1 because the variable is not set. */
bool plan_limits_threads(const struct plan *plan);

/* text with ${local_rank}, $local_rank and $$ replaced as Python's string.Template does; malloc'ed. */
char *plan_substitute(const char *text, int local_rank);
