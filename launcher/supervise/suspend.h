#pragma once

/*
 * Whether SIGTSTP (Ctrl-Z) stops crun, as the kernel decides: process 1 of a container is never stopped by it, nor is a
 * process whose group is orphaned (no shell of its session can continue it). suspend.c is pure; suspend_os.c looks, and stops
 * crun. SIGTSTP has its default action and is blocked.
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

/* The same for this process. Reads /proc; where there is none, only the parent counts. */
bool suspend_is_possible(void);

/* Sends SIGTSTP to crun itself, and returns when crun has been continued (SIGCONT is pending then, and blocked): true. False: the
 * kernel has ignored the signal. */
bool suspend_self(void);
