#pragma once

/*
 * Output of workers for another process, the far end of a channel (crun --front-channel). The agent makes a pipe for each
 * stream of a worker, and sends the reading end over the socket in CRUN_OUTPUT_FD. A slow reader blocks the worker's write(),
 * never the agent. Small files about a worker go the same way: the pipe takes the whole file at once.
 */

#include <stddef.h>
#include <stdint.h>

enum { OUTPUT_HANDOVER_VERSION = 2, OUTPUT_FILE_MAX = 1 << 20 };

enum output_which {
    OUTPUT_STDOUT,
    OUTPUT_STDERR,
    OUTPUT_ERROR_FILE, /* error.json of the worker */
    OUTPUT_STACKS,     /* rank_RANK.txt in a folder of stacks */
    OUTPUT_NCCL_TEXT,  /* nccl_ras.txt, as above */
    OUTPUT_NCCL_JSON,  /* nccl_ras.json, as above */
    OUTPUT_WHICH_COUNT
};

/* One record of the socket (SOCK_SEQPACKET), with one descriptor. Both processes run one build: numbers in the machine's order. */
struct output_handover {
    uint32_t version;
    uint32_t rank;
    uint32_t local_rank; /* from OUTPUT_STACKS on: number of the folder of stacks */
    uint32_t which;      /* enum output_which */
    uint32_t attempt;    /* number of the attempt, as in the folder of its log files */
};

/* For the agent: makes the pipe. *ret_fd: the end for the worker; the caller closes the descriptor. 0 or -errno. */
int output_handover_open(int link, const struct output_handover *handover, int *ret_fd);

/* For the agent: a file of at most OUTPUT_FILE_MAX bytes. 0 or -errno; -ENOBUFS: the kernel gives no pipe of the size. */
int output_handover_file(int link, const struct output_handover *handover, const void *bytes, size_t n);

/* For the other process; never waits. 1: *ret_fd is the caller's. 0: nothing more now. -EPIPE: the agent has closed
 * the socket. -EBADMSG: a broken record. Another -errno. */
int output_handover_receive(int link, struct output_handover *ret, int *ret_fd);
