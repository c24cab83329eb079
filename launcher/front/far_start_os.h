#pragma once

/*
 * Starts the agent of a far end: the same program as a child, with pipes as its standard streams, the job's secret in
 * CRUN_SECRET_FD and a socket for the output of workers in CRUN_OUTPUT_FD. The kernel sends SIGTERM to the agent when the far end dies.
 */

#include <signal.h>
#include <sys/types.h>

struct far_header;

/* Descriptors between the two processes, by their number in the agent. */
enum far_link {
    FAR_LINK_IN,
    FAR_LINK_OUT,
    FAR_LINK_ERR,
    FAR_LINK_SECRET,
    FAR_LINK_OUTPUT,  /* see output_handover_sock.h */
    FAR_LINK_FAILURE, /* closed by exec: the sentence of a start that failed, at most CHANNEL_TEXT_MAX bytes */
    FAR_LINK_COUNT
};

struct far_agent {
    pid_t pid;
    int links[FAR_LINK_COUNT]; /* the far end's ends; -1: none */
};

/* mask: the agent's signal mask. endpoint: where the far end accepts connections of the agent. 0, or -errno without an agent. */
int far_agent_start(struct far_agent *ret, const struct far_header *header, const char *endpoint,
                    const sigset_t *mask);
