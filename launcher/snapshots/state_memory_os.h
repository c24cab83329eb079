#pragma once

/*
 * crun's side of a worker's state file (proto/state_blocks.h). crun never maps the file: a worker that truncates the file gives crun
 * short reads and no signal. Every function but state_memory_table() may take seconds with a large file, and belongs into a thread.
 *
 * Ways a copy fails: the worker has begun to write the slot again (-ESTALE), the bytes have another checksum (-EBADMSG; the slot is then
 * cleared, so that no later choice counts on the block), no memory (-ENOMEM).
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "proto/state_blocks.h"

struct state_memory {
    int fd;
    pthread_mutex_t lock;
    uint32_t readers[STATE_SLOTS_MAX];
    atomic_uint n_users;
};

/* Of the file, through a descriptor of its own. NULL, errno: none. The caller is the first user; threads that outlive the caller are
 * users of their own. */
struct state_memory *state_memory_open(int fd);
struct state_memory *state_memory_ref(struct state_memory *m);
/* The last user frees. NULL is fine. */
void state_memory_unref(struct state_memory *m);

/* Makes the file at least n bytes long, with memory behind every byte, and seals the file against shrinking. 0; -ENOMEM: *ret_room has the
 * bytes that the machine and the cgroups would give; -errno. */
int state_memory_size(struct state_memory *m, uint64_t n, uint64_t *ret_room);

/* 0; -ENOENT: the worker keeps no blocks; -EBADMSG: other bytes; -errno. */
int state_memory_table(const struct state_memory *m, struct state_table *ret);

/* The slot with the rank's block of a step, written in a generation. False: there is none. */
bool state_memory_find(const struct state_memory *m, uint32_t rank, uint64_t step, uint32_t generation,
                       uint32_t *ret_slot, struct state_block *ret);

/* Takes bytes of a held block, in order. 0 or -errno, which ends the reading with that result. */
typedef int state_memory_sink(void *data, const uint8_t *bytes, size_t n);

/* Reads a block under a hold and compares the checksum at the end: what the sink got is good when the result is 0. */
int state_memory_read(struct state_memory *m, uint32_t slot, const struct state_block *block,
                      state_memory_sink *sink, void *data);

/* A file in memory with the block, which no process can change; the caller owns *ret_fd. */
int state_memory_copy(struct state_memory *m, uint32_t slot, const struct state_block *block, int *ret_fd);

/* Takes a slot out of the table, unless the worker has written the slot since. */
void state_memory_clear(struct state_memory *m, uint32_t slot, const struct state_block *block);
