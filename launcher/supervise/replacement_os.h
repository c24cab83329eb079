#pragma once

/*
 * The order to a running guardian to start one more worker: its arguments and environment go through the link in a
 * memory file, with the descriptors attached. (For the first workers they are in the memory that the guardian inherits
 * by fork.)
 */

#include <stddef.h>
#include <sys/types.h>

#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/spawn_worker_os.h"

/* For crun: sends the order. The caller keeps the worker's descriptors. 0 or -errno. */
int replacement_send(int link, int worker, const struct spawn_worker *w);

/* For crun, where a guardian stays for several generations: sends GUARDIAN_BEGIN. The notice may be NULL. 0 or -errno. */
int replacement_send_begin(int link, const struct death_notice *notice);

/* The contents of an order. The descriptors belong to it; -1: none. */
struct replacement {
    struct spawn_worker worker;
    void *texts;
    size_t texts_size;
    int texts_fd; /* the memory file; GUARDIAN_BEGIN: of the death notice, if there is one */
    size_t texts_at, n_arguments, n_variables,
        cpus_at; /* offsets in it, for the zygote; cpus_at 0: no binding */
};

/*
 * For the guardian, which allocates nothing: receives one order of any kind from the link, without waiting. Returns
 * as recv(). The replacement is filled when the order is GUARDIAN_START; the caller finishes it in any case.
 * order->error is then 0, or the errno when a descriptor or the texts did not arrive.
 */
ssize_t replacement_receive(int link, struct guardian_order *order, struct replacement *ret);
void replacement_finish(struct replacement *r);
