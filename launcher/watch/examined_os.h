#pragma once

/*
 * A process that a tool examines. A tool that attaches by ptrace(2) sends SIGSTOP to each thread. A tool that ends too early
 * leaves this signal behind: the process stops, or stops later, when a wait in state D is over. SIGCONT takes all such signals
 * back, so it is sent when the tool has ended, to a process that was not stopped before and that no other program traces.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct examined {
    pid_t pid;
    uint64_t
        start_ticks; /* of the process, since the system's start: another one may get its number; 0: never continued */
};

/* Before the tool starts. */
void examined_begin(struct examined *e, pid_t pid);

/* After the end of the tool. False: the workers are suspended, and the call is to be repeated. */
bool examined_continue(const struct examined *e);

/* While the workers are suspended (Ctrl-Z) nothing is continued. For any thread. */
void examined_suspend(bool is_suspended);
