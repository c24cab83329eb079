#pragma once

/*
 * What keeps a daemon that was taken over from the rest of the machine: Landlock limits the files that it reaches, seccomp the
 * system calls. Neither needs privileges, and neither can be undone.
 *
 * Landlock binds the calling thread and those that it starts later: limit files before there are others. The filter binds all threads.
 */

#include <stdbool.h>
#include <stddef.h>

#include "rendezvous/daemon/sandbox_filter.h"

enum { SANDBOX_ERROR_SIZE = 256 };

enum sandbox_use {
    SANDBOX_READ,    /* a folder and all below it, or a file */
    SANDBOX_WRITE,   /* the same, to read and to change */
    SANDBOX_SOCKETS, /* a folder in which socket files are made and removed */
};

struct sandbox_path {
    const char *path;
    enum sandbox_use use;
};

/* False: this build needs calls that no list has (a sanitizer). */
bool sandbox_is_possible(void);

/* From now on io_uring_setup() fails with ENOSYS. Before the loop is made: libuv from 1.45 on makes a ring for its calls of
 * epoll_ctl() where it can, and aborts once the filter below refuses them. They are not allowed, as the operations of a ring pass by
 * all filters. 0 or -errno, as below. */
int sandbox_refuse_rings(char why[SANDBOX_ERROR_SIZE]);

/* Paths that do not exist are left out. 0; -ENOSYS or -EOPNOTSUPP: the kernel has no Landlock, or another -errno: `why` is a part
 * of a sentence. */
int sandbox_limit_files(const struct sandbox_path *paths, size_t n, char why[SANDBOX_ERROR_SIZE]);

/* 0, or -errno as above. */
int sandbox_limit_calls(const struct sandbox_calls *calls, char why[SANDBOX_ERROR_SIZE]);
