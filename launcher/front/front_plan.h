#pragma once

/*
 * What a front does, decided from the command line: the hosts, the command that starts crun on each, and what each crun gets
 * through its channel. Pure.
 *
 * An agent gets the options of the user again (options_render()) without those of the front, and in front of the program:
 * --nnodes, --nproc-per-node, --rdzv-backend=c10d, --rdzv-id, --node-rank. Output of workers is the front's: -r, -t, --log-dir, prefixes, folding
 * and filters stay here. Where the front hosts the rendezvous (hosts_rendezvous), --rdzv-conf has is_host=0, and the arguments
 * have no --rdzv-endpoint: the far puts "--rdzv-endpoint=127.0.0.1:PORT" of its own listener before them. The far puts --local-addr
 * before them in any case. A later option wins, so a user's endpoint (a crund) needs no special care.
 *
 * Fails with one sentence: options that do not go together with --hosts, a wrong list, fewer hosts than MIN.
 */

#include <stdbool.h>
#include <stddef.h>

#include "launcher/cli/options.h"
#include "launcher/front/bootstrap.h"
#include "launcher/front/hosts.h"
#include "launcher/util/strlist.h"

/* Facts about the front's machine. Strings outlive the plan. */
struct front_machine {
    const char *version;    /* of crun */
    const char *executable; /* path of this crun; NULL: not known */
    const char *directory;  /* working directory */
    char *const *environment;
    const char *python; /* interpreter that workers would get here; NULL: none, or the program needs none */
    const char *random_id;                /* a fresh UUID, for a job without --rdzv-id */
    const struct bootstrap_build *builds; /* portable builds that can travel */
    size_t n_builds;
    struct host_files files;
};

enum front_launch {
    FRONT_LAUNCH_SSH,
    FRONT_LAUNCH_SRUN,
    FRONT_LAUNCH_COMMAND, /* the user's */
};

struct front_host {
    char *login;           /* USER@NAME, or NAME */
    struct strlist launch; /* argv of the command that starts the bootstrap on the host */
    struct strlist agent;  /* arguments of crun there, without the program's name */
    int n_workers;         /* bound: JOB_WORKERS_MAX where the host counts CPUs or GPUs */
};

struct front_plan {
    struct host_list list;
    struct front_host *hosts; /* list.n; those from max_nodes on are spares */
    int min_nodes, max_nodes;
    int n_ranks; /* workers of max_nodes hosts; 0: hosts count CPUs or GPUs */
    enum front_launch launch;
    bool hosts_rendezvous;    /* the front serves the rendezvous; else a crund does (--rdzv-endpoint) */
    bool is_open;             /* --security=open: the front makes no secret */
    bool admits;              /* channels admit agents to the rendezvous of the front */
    const char *job_id;       /* name of the job */
    const char *directory;    /* working directory on each host */
    struct strlist variables; /* NAME=VALUE, for each host */
    char *script;             /* bootstrap, for /bin/sh -c */
};

#define FRONT_ERROR_SIZE 1024

/* Whether the command line asks for a front: --hosts or --hostfile. */
bool front_plan_is_wanted(const struct options *options);

/* *ret borrows from options and machine. 0, or 1 with a sentence in error (exit code 1), and nothing to finish. */
int front_plan_make(struct front_plan *ret, const struct options *options,
                    const struct front_machine *machine, char error[FRONT_ERROR_SIZE]);
void front_plan_finish(struct front_plan *plan);
