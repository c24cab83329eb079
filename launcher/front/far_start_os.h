#pragma once

/*
 * Starts the agent of a far end: the same program as a child, with pipes as its standard streams, the job's secret in
 * CRUN_SECRET_FD and a socket for the output of workers in CRUN_OUTPUT_FD. The kernel sends SIGTERM to the agent when the far end dies.
 */

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

struct far_header;

struct far_agent {
    pid_t pid;
    int stdio[3]; /* the far end's ends of the agent's standard streams */
    int handover; /* see output_handover_sock.h */
    int failure; /* reading end: the sentence of a start that failed; at its end without one the agent runs */
};

/* mask: the agent's signal mask. endpoint: where the far end accepts connections of the agent. 0, or -errno without an agent. */
int far_agent_start(struct far_agent *ret, const struct far_header *header, const char *endpoint,
                    const sigset_t *mask);
