#pragma once

/*
 * Requests of workers about blocks of state (proto/state_blocks.h). All workers of the node inherit the door; a worker that comes through
 * the door has a channel. A worker without room for answers loses answers: crun never waits for a worker.
 */

#include <stdint.h>
#include <uv.h>

#include "base/list.h"
#include "proto/state_blocks.h"

struct block_requests;

/* The socket of a worker. The channel ends with the other end of the socket. */
struct block_channel {
    struct list siblings;
    struct block_requests *requests;
    uv_poll_t poll;
    int fd;
    uint32_t local_rank, rank, generation; /* of the HELLO; not trusted */
};

struct block_requests_host {
    uv_loop_t *loop;
    int door;           /* crun's end, borrowed */
    uint32_t n_workers; /* local ranks from n_workers on are refused */
    void (*on_request)(void *data, struct block_channel *channel, const struct blocks_record *request);
    void (*on_gone)(void *data, struct block_channel *channel); /* the channel takes no more answers */
    void *data;
};

/* 0 or -errno. */
int block_requests_open(struct block_requests **ret, const struct block_requests_host *host);

/* fd: goes with the answer, borrowed; -1: none. */
void block_channel_answer(const struct block_channel *channel, const struct blocks_record *answer, int fd);

/* The same record to all workers that ask. */
void block_requests_tell(const struct block_requests *r, const struct blocks_record *record);

/* Ends all channels, without on_gone(). Frees itself when libuv has closed the handles. NULL is fine. */
void block_requests_close(struct block_requests *r);
