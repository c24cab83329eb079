#pragma once

/*
 * Builds of crun for hosts without crun: crun-MACHINE in CRUN_PORTABLE_DIR, else in ../lib/crun/portable beside the running
 * program. Without a file for the front's machine type the running program itself.
 */

#include <stddef.h>

#include "launcher/front/bootstrap.h"

struct file_part;

enum { FRONT_COPIES_MAX = 8, FRONT_COPY_SIZE_MAX = 64 << 20 };

struct front_copies {
    struct bootstrap_build builds[FRONT_COPIES_MAX]; /* strings: the two members below */
    char machines[FRONT_COPIES_MAX][65], hashes[FRONT_COPIES_MAX][65];
    struct file_part *files[FRONT_COPIES_MAX];
    size_t n;
};

/* Reads disks. Unreadable builds are left out. 0; or -ENOSYS: *ret_why names the missing library. */
int front_copies_load(struct front_copies *c, char *const *environment, const char **ret_why);

/* The build with the hash; NULL: none. */
const struct file_part *front_copies_find(const struct front_copies *c, const char *hash);

void front_copies_finish(struct front_copies *c);
