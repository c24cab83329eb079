#pragma once

/*
 * The fence of a snapshot folder: a small file that names the run and the generation which save there. A rank that was taken for
 * lost, and whose job goes on without it, must not replace what the ranks after it have saved.
 *
 * A writer claims the folder when it opens it, and looks again before it gives a snapshot its name. Within one run (CRUN_INSTANCE) the
 * later generation has the folder. Of two runs it is the one that has claimed it last: a new job may go on from an old snapshot
 * with a lower generation; the runs before it are listed, and cannot claim the folder again.
 *
 * Pure: the text of the file in, a decision and the new text out.
 */

#include <stdbool.h>
#include <stddef.h>

#include "worker-runtime/base/run_identity.h"

enum {
    SNAPSHOT_FENCE_ENDED_MAX = 32, /* the oldest are forgotten */
    SNAPSHOT_FENCE_TEXT_MAX = 64 + (SNAPSHOT_FENCE_ENDED_MAX + 1) * (RUN_INSTANCE_SIZE + 8),
};

struct snapshot_fence {
    struct run_identity owner;
    char ended[SNAPSHOT_FENCE_ENDED_MAX]
              [RUN_INSTANCE_SIZE]; /* runs that had the folder before, newest first */
    size_t n_ended;
};

enum snapshot_fence_result {
    SNAPSHOT_FENCE_OURS,             /* nothing is to be written */
    SNAPSHOT_FENCE_CHANGED,          /* the fence is to be written, then the folder is ours */
    SNAPSHOT_FENCE_LATER_GENERATION, /* refused */
    SNAPSHOT_FENCE_LATER_RUN,        /* refused */
};

/* False: it is damaged, and counts as none. */
bool snapshot_fence_parse(const char *text, size_t n, struct snapshot_fence *ret);

/* Returns the length. */
size_t snapshot_fence_format(const struct snapshot_fence *f, char ret[SNAPSHOT_FENCE_TEXT_MAX]);

/* claims: the writer has just opened the folder. f: what is there, all zero: nothing. */
enum snapshot_fence_result snapshot_fence_pass(struct snapshot_fence *f, const struct run_identity *writer,
                                               bool claims);
