#pragma once

/*
 * The orders to the guardian (guardian_os.h), above all the order to start a worker: the description of the start
 * (worker_start.h) goes through the link as bytes, with the descriptors attached. So the guardian has a worker's descriptors
 * only while starting the worker. A guardian that inherited all descriptors by fork() would copy all for each worker: a
 * cost quadratic in the number of workers.
 */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/worker_start.h"

/* For crun: sends the order. The caller keeps the worker's descriptors. for_zygote: the guardian has a zygote. 0 or -errno. */
int guardian_send_start(int link, int worker, const struct worker_start *start, bool for_zygote);

struct death_notice;

/* For crun: a memory file with these bytes. The descriptor, or -errno. */
int memory_file_make(const char *name, const void *bytes, size_t size);

/* For crun: sends GUARDIAN_BEGIN. notice: replaces an earlier notice; NULL: no change. 0 or -errno. */
int guardian_send_begin(int link, const struct death_notice *notice);

/* The contents of an order, with the ownership of the descriptors. */
struct ordered_start {
    struct worker_start start; /* valid until the next order is received, unless there is a memory file */
    int fd;                    /* memory file of the bytes; -1: none */
    void *bytes;               /* the mapped file, or NULL */
    size_t size;
    const struct death_notice *notice; /* GUARDIAN_BEGIN: until the next order is received; NULL: none */
};

#define ORDERED_START_NONE ((struct ordered_start){.start = {.fds = WORKER_START_NO_FDS}, .fd = -1})

/*
 * For the guardian, which allocates nothing: receives an order of any kind from the link, without waiting. Returns
 * as recv(). *ret is filled when the order is GUARDIAN_START; the caller finishes it in any case.
 * order->error is 0, or the errno when a descriptor or the bytes did not arrive.
 */
ssize_t guardian_receive_order(int link, struct guardian_order *order, struct ordered_start *ret);
void ordered_start_finish(struct ordered_start *r);
