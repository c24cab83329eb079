#pragma once

/*
 * How a guardian that is already there is told to start one worker more: everything that worker is started
 * with goes through the link, texts in a memory file and descriptors beside it. (The first workers' things are
 * simply in the memory that the guardian is forked with.)
 */

#include <stddef.h>
#include <sys/types.h>

#include "launcher/supervise/guardian_os.h"
#include "launcher/supervise/spawn_os.h"

/* For crun: the order. The worker's descriptors stay the caller's. 0 or -errno. */
int replacement_send(int link, int worker, const struct spawn_worker *w);

/* What came with an order. Descriptors are owned, -1: none. */
struct replacement {
    struct spawn_worker worker;
    void *texts;
    size_t texts_size;
};

/*
 * For the guardian, which allocates nothing: takes one order of whatever kind from the link, without waiting.
 * Like recv(); the replacement is filled when the order is GUARDIAN_START, and is to be finished in any case.
 * order->error then says whether everything came with it.
 */
ssize_t replacement_receive(int link, struct guardian_order *order, struct replacement *ret);
void replacement_finish(struct replacement *r);
