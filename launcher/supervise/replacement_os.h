#pragma once

/*
 * The order to a running guardian to start one more worker: its start (worker_start.h) goes through the link as bytes in a memory
 * file, with the descriptors attached. (For the first workers they are in the memory that the guardian inherits by fork.)
 */

#include <stddef.h>
#include <sys/types.h>

#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/worker_start.h"

/* For crun: sends the order. The caller keeps the worker's descriptors. 0 or -errno. */
int replacement_send(int link, int worker, const struct worker_start *start);

/* For crun, where a guardian stays for several generations: sends GUARDIAN_BEGIN. The notice may be NULL. 0 or -errno. */
int replacement_send_begin(int link, const struct death_notice *notice);

/* The contents of an order, which own their descriptors. */
struct replacement {
    struct worker_start start; /* in bytes */
    void *bytes;               /* NULL: none */
    size_t size;
    int fd; /* the memory file of bytes; GUARDIAN_BEGIN: of the death notice; -1: none */
};

#define REPLACEMENT_NONE ((struct replacement){.start = {.fds = WORKER_START_NO_FDS}, .fd = -1})

/*
 * For the guardian, which allocates nothing: receives one order of any kind from the link, without waiting. Returns
 * as recv(). The replacement is filled when the order is GUARDIAN_START; the caller finishes it in any case.
 * order->error is then 0, or the errno when a descriptor or the bytes did not arrive.
 */
ssize_t replacement_receive(int link, struct guardian_order *order, struct replacement *ret);
void replacement_finish(struct replacement *r);
