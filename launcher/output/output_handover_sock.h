#pragma once

/*
 * Output of workers for another process, the far end of a channel (crun --front-channel). The agent makes a pipe for each
 * stream of a worker, and sends the reading end over the socket in CRUN_OUTPUT_FD. A slow reader blocks the worker's write(),
 * never the agent.
 */

#include <stdint.h>

enum { OUTPUT_HANDOVER_VERSION = 1 };

/* One record of the socket (SOCK_SEQPACKET), with one descriptor. Both processes run one build: numbers in the machine's order. */
struct output_handover {
    uint32_t version;
    uint32_t rank, local_rank;
    uint32_t which;   /* 0: standard output, 1: standard error */
    uint32_t attempt; /* number of the attempt, as in the folder of its log files */
};

/* For the agent: makes the pipe. *ret_fd: the end for the worker; the caller closes the descriptor. 0 or -errno. */
int output_handover_open(int link, const struct output_handover *handover, int *ret_fd);

/* For the other process; never waits. 1: *ret_fd is the caller's. 0: nothing more now. -EPIPE: the agent has closed
 * the socket. -EBADMSG: a broken record. Another -errno. */
int output_handover_receive(int link, struct output_handover *ret, int *ret_fd);
