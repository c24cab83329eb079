#pragma once

/*
 * Looks at the workers of the node once a second, and describes them to its owner while one of them waits unusually long (waits.h), or
 * while the owner asks for it because a rank of another node does. All reading of /proc and all tools are left to a side
 * thread: while it waits for a disk the watch stands still, and the job does not.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "launcher/watch/watch_uv.h"

struct hang_rank;
struct stall_watch;

struct stall_watch_host {
    uv_loop_t *loop;
    char *const *environment;
    const char *python; /* executed for workers; NULL: not known */
    int n_workers;
    const int *state_fds; /* of the workers' memory files */
    /* The workers, and whether all of them are at work; returns the generation. */
    uint32_t (*describe)(void *data, struct watch_worker *workers, bool *ret_at_work);
    int (*rank_base)(void *data);
    void *describe_data; /* of the two above */
    /* The ranks of this node, to be sorted at will; n_unusual: ranks that wait unusually long, 0 once more after the last of them went on. */
    void (*on_ranks)(void *data, struct hang_rank *ranks, size_t n_ranks, int n_unusual);
    void *data;
};

/* 0 or -ENOMEM. */
int stall_watch_create(struct stall_watch **ret, const struct stall_watch_host *host);

/* on_ranks() follows, whether a rank waits unusually long or not. NULL is fine. */
void stall_watch_ask(struct stall_watch *w);

/* Closes its handles; no callback comes any more. Afterwards, when the loop has run dry, stall_watch_destroy(). NULL is fine for both. */
void stall_watch_close(struct stall_watch *w);
void stall_watch_destroy(struct stall_watch *w);
