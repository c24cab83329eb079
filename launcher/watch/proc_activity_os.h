#pragma once

/*
 * The activity of the ranks of a node, from /proc. One look costs four small files for each process. Files under the
 * memory lock of a process (cmdline, maps, environ) are never read; of a process in state D only stat, io, syscall and wchan
 * are read. The name of a file in use is taken from the descriptor, without a look at the file.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/watch/activity.h"
#include "launcher/watch/proc_sample_os.h"

/* Kept between two looks at a rank. Zeroed before the first. */
struct proc_activity {
    pid_t pid; /* of the worker; counters of another process are not compared */
    uint64_t at_ns;
    uint64_t processes; /* digest of the numbers of all */
    struct proc_sums sums;
    struct proc_times main;
    uint64_t place; /* digest of system call and stack pointer; 0: the thread runs */
    int call;       /* number of the system call; -1: none */
    int descriptor; /* of a call that reads or writes; -1: none */
    bool is_server; /* two looks found the rank in a wait for clients, at the same place */
    bool is_server_known;
    bool moved; /* since the look before: another place, or a main thread that did more than a poll does */
    struct activity_facts facts;
};

/* A look, after proc_sum(). now_ns: monotonic. */
void proc_activity_look(struct proc_activity *a, const struct proc_tree *tree, uint64_t now_ns);

/* Pauses of 20 ms, for the files of all ranks that read or write, in one description. */
enum { PROC_ACTIVITY_PAUSES = 30 };

/* The activity of the last look, and words for it; names are read from /proc now. *pauses: left; a file that would need more is not named. */
enum activity proc_activity_text(const struct proc_activity *a, const struct proc_tree *tree, int *pauses,
                                 char *out, size_t size);
