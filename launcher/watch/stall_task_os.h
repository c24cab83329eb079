#pragma once

/*
 * The side thread's part of stall_watch_uv.h: one look at the ranks of the node, and their description when a rank waits unusually
 * long.
 *
 * Looking is safe. A look reads numbers of /proc. A description takes the stacks of Python programs without a pause (py-spy
 * --nonblocking). Of other programs at most two are paused for a moment: the first rank that does not wait, and the rank that has
 * waited longest, and neither in state D or stopped.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/watch/stack_tool_os.h"
#include "launcher/watch/waits.h"

struct hang_rank;
struct proc_activity;
struct proc_tree;

struct stall_task {
    char *const *environment;
    const char *python;
    int n_workers;
    const int *state_fds; /* of the workers' memory files; -1: none */
    struct proc_tree *trees;
    struct proc_activity *activities;
    uint64_t *counts; /* digest of the published counters, of the look before */
    struct stack_tools tools;
    bool has_tools; /* they were looked for */
    int n_looks;
    /* The order. */
    bool describes;    /* the ranks, beside the look */
    bool takes_stacks; /* for the description */
    int rank_base;
    pid_t *pids;                    /* 0: the worker does not run */
    bool *have_succeeded;           /* of those that do not run */
    uint64_t *waits_ns, *limits_ns; /* for the description */
    /* The results. */
    struct wait_sample *samples;
    struct hang_rank *ranks; /* of those that run or have succeeded */
    size_t n_ranks;
    char host[256];
};

/* 0 or -ENOMEM; the arguments must live as long. */
int stall_task_init(struct stall_task *t, char *const *environment, const char *python, int n_workers,
                    const int *state_fds);
void stall_task_finish(struct stall_task *t);
void stall_task_run(struct stall_task *t);
