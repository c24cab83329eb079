#pragma once

/*
 * Whether SIGTSTP (Ctrl-Z) stops crun, as the kernel decides: process 1 of a container is never stopped by it, nor is a
 * process whose group is orphaned (no shell of its session can continue it). Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { SUSPEND_LINE_MAX = 32 };

struct suspend_process {
    pid_t pid;
    pid_t group, session; /* 0: outside of crun's PID namespace */
};

/* line: crun, its parent, the parent of that ... (n processes; a parent outside of the namespace has pid 0). */
bool suspend_will_stop(const struct suspend_process *line, size_t n);
