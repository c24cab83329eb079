#pragma once

/*
 * What crun takes from Slurm's environment, when srun started it on each node of a step. Pure.
 */

#include <stdint.h>

#include "launcher/cli/hostlist.h"

struct slurm {
    char host[HOSTLIST_NAME_SIZE]; /* the first of the step's, or of the job's */
    uint16_t port;                 /* derived from the job and the step */
    int n_nodes;                   /* in that list */
    const char *job_id, *step_id;  /* point into the environment */
};

enum { SLURM_PORT_FIRST = 20000, SLURM_PORTS = 12000 };

enum { MUNGE_SOCKET_SIZE = 108 }; /* of a path of a unix socket */

enum {
    SLURM_E_NONE = 1, /* this is no task of a step over several nodes */
    SLURM_E_BAD,      /* it is one, but its list of nodes cannot be read */
};

/* 0: the fields are set. *ret_variable: of SLURM_E_BAD, the name of the variable. */
int slurm_find(char *const *environment, struct slurm *ret, const char **ret_variable);

/* The socket of the munged that Slurm uses, from the text of its configuration (AuthInfo=socket=PATH); "" where it names none, or one
 * that is too long. conf may be NULL. */
void slurm_munge_socket(const char *conf, char ret[MUNGE_SOCKET_SIZE]);

/*
 * Calls take(data, value, size) with each value behind "NAME=" in a configuration of Slurm, on a line of its own or among other
 * words, without comments. name ends in "=".
 */
void slurm_each_setting(const char *conf, const char *name,
                        void (*take)(void *data, const char *value, size_t n), void *data);
