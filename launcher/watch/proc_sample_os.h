#pragma once

/*
 * Facts of /proc about the processes of ranks: samples for progress.h, and text for people. For a thread of its own: hundreds
 * of small files. No read waits for the memory lock of a process, which a process in state D may hold (cmdline, maps and
 * environ would wait).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/watch/progress.h"

enum { PROC_TREE_MAX = 64 }; /* processes of a rank: others are not looked at */

/* A worker and its descendants. The first is the judged process, below called the worker: the started process or, behind shells waiting for
 * a single child, the child. */
struct proc_tree {
    pid_t started; /* the process that crun has started; 0: none */
    pid_t pids[PROC_TREE_MAX];
    int n_pids;
    struct proc_sums {
        uint64_t ran_ns, child_ran_ns; /* so far, of the worker and of its descendants */
        uint64_t read, written;        /* bytes so far, of all */
        char state;                    /* of the worker */
        bool has_ended;                /* the worker */
        bool child_runs;               /* a descendant was on a CPU or in state D */
    } sums;                            /* as of proc_sum() */
};

/* Finds the trees of n workers (0: none) by their children, or in one pass over /proc where the kernel lists no children. Returns 0 or -errno; then each tree has the worker alone. */
int proc_find_trees(const pid_t *workers, int n, struct proc_tree *trees);

/* Bytes of the process so far, as in progress_sample.n_bytes; 0: no such process, or no permission. */
uint64_t proc_sample_bytes(pid_t pid);

/* From stat and io of each process. */
void proc_sum(struct proc_tree *tree);

/* Of a main thread so far: time on a CPU, time able to run but without a CPU, and number of turns. 0: not known. */
struct proc_times {
    uint64_t ran_ns, waited_ns, n_slices;
};
struct proc_times proc_read_times(pid_t pid);

/* Adds from a text of /proc/PID/syscall: number of the system call, stack pointer and address. Not its arguments: they may be new in
 * each turn of a loop that polls. */
uint64_t proc_digest_call(uint64_t digest, const char *text);

/* After proc_sum(). state_fd: the memory file of the worker, or -1. */
void proc_sample(const struct proc_tree *tree, int state_fd, struct progress_sample *ret);

/* Adds the place to *ret. Main threads that run are added to running[PROC_TREE_MAX]; returns how many. */
int proc_sample_place(const struct proc_tree *tree, struct progress_sample *ret, pid_t *running);

/* 'R', 'S', 'D' ...; 0: no such process. */
char proc_sample_state(pid_t pid);

/* Sets the child_ members: a descendant in state T or D. */
struct hang_rank;
void proc_sample_child(pid_t pid, char state, struct hang_rank *ret);

/* Whether the process runs Python. */
bool proc_sample_is_python(pid_t pid);

/* State, system call and place in the kernel of every thread, at most size - 1 bytes. Returns the length. */
size_t proc_sample_describe(pid_t pid, char *out, size_t size);
