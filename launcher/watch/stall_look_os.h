#pragma once

/*
 * A look at the ranks of the node for waits.h, and the description of all ranks for a line about a partial stall: the part of
 * watch_task_os.h that runs once a second on the side thread.
 *
 * Looking is safe. A look reads numbers of /proc. A description takes the stacks of Python programs without a pause (py-spy
 * --nonblocking). Of other programs at most two are paused for a moment: the first rank that does not wait, and the rank with
 * the longest wait, and neither in state D nor stopped.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hang_rank;
struct known_stack;
struct proc_activity;
struct stack_tools;
struct wait_sample;
struct watch_task;

struct stall_look {
    struct proc_activity *activities; /* of each worker */
    uint64_t *counts;                 /* digest of the published counters, of the look before */
    struct known_stack *stacks;       /* of workers in a wait */
    struct wait_sample *samples;      /* result of a look */
    struct hang_rank *ranks;          /* result of a description: workers that run or have succeeded */
    size_t n_ranks;
};

/* 0 or -ENOMEM; then stall_look_finish() is fine, too. */
int stall_look_init(struct stall_look *l, int n_workers);
void stall_look_finish(struct stall_look *l);

/* Looks at the workers of the task. */
void stall_look_take(struct stall_look *l, const struct watch_task *t);

/* Describes them as of the last look. tools: for stacks; NULL: none are taken. */
void stall_look_describe(struct stall_look *l, const struct watch_task *t, const struct stack_tools *tools);
