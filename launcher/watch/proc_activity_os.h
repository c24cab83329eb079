#pragma once

/*
 * The activity of the ranks of a node, from /proc. One look costs four small files for each process. No file is read that
 * waits for the memory lock of a process (cmdline, maps, environ); of a process in state D only stat, schedstat, io and syscall
 * are read. The file that a rank reads is found by its descriptor, without a look at the file itself.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/watch/activity.h"

struct proc_tree;

/* Kept between two looks at a rank. Zeroed before the first. */
struct proc_activity {
    pid_t pid; /* of the worker; counters of another process are not compared */
    uint64_t at_ns;
    uint64_t ran_ns, child_ran_ns, read, written; /* so far, of the worker and its descendants */
    uint64_t main_ran_ns, n_slices;               /* of the main thread; how often it got a CPU */
    uint64_t place; /* digest of its system call and stack pointer; 0: it runs */
    int descriptor; /* of the system call; -1: none */
    bool moved;     /* since the look before: another place, or more processor time than a poll takes */
    struct activity_facts facts;
};

/* A look. now_ns: monotonic. */
void proc_activity_look(struct proc_activity *a, const struct proc_tree *tree, uint64_t now_ns);

/* The activity of the last look and its words; names are read from /proc now. */
enum activity proc_activity_text(const struct proc_activity *a, const struct proc_tree *tree, char *out,
                                 size_t size);
