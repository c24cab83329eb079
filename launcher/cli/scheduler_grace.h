#pragma once

/*
 * How long the scheduler that runs crun waits between asking it to end and killing it. crun must have stopped its workers
 * before that, or it is killed while they save. Pure: the environment and Slurm's configuration come in.
 */

#include <stdbool.h>

enum {
    GRACE_RESERVE_MAX_S = 5, /* for what follows the shutdown timeout: kill, report, exit */
};

struct scheduler_grace {
    int seconds;     /* 0: unknown */
    bool is_certain; /* false: the scheduler's default, which its administrator may have changed */
    const char *source;
};

enum { GRACE_E_BAD = 1 }; /* CRUN_GRACE_SECONDS is not a number of seconds */

/*
 * CRUN_GRACE_SECONDS where it is set; else, in a job of Slurm, KillWait of its configuration where that can be read
 * (slurm_conf: its text or NULL), else the default of Slurm or Kubernetes inside one of these.
 */
int scheduler_grace_find(char *const *environment, const char *slurm_conf, struct scheduler_grace *ret);

/* The longest shutdown timeout that fits: a third of the grace, at most GRACE_RESERVE_MAX_S, is kept for what follows it.
 * At least 1 s, so that workers are never killed in the moment in which they are asked to end. */
int scheduler_grace_timeout_max(const struct scheduler_grace *grace);
