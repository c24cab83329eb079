#pragma once

/*
 * The start of a worker: what it executes, with which descriptors and attributes. One description for every way to start: the
 * struct for a fork and exec (spawn_worker_os.h), and its bytes where the worker is started by another process. crun sends the bytes with an
 * order to the guardian (guardian_orders_os.h), which takes them back into a struct or passes them on to the zygote (zygote_os.h).
 *
 * A new attribute of workers is a member of struct worker_attributes and a line in spawn_set_attributes(). Workers that start cold, warm
 * or as a replacement then have it. A new descriptor is a number below, and LAST_FD in zygote.py.
 *
 * Bytes, in the order and alignment of the machine: the head, room for the pointers of both lists, then the strings with their NULs:
 * the file, the arguments, the environment.
 */

#include <stddef.h>
#include <stdint.h>

#include "launcher/cli/numa.h"

/* Numbers inside a worker, after standard input, output and error. */
enum {
    SPAWN_NOTICE_FD = 3,
    SPAWN_STATE_FD,  /* see proto/worker_memory.h */
    SPAWN_IMPORT_FD, /* of the zygote alone: see zygote_launch() */
    SPAWN_KEY_FD,    /* as SPAWN_STATE_FD */
    SPAWN_FD_END,    /* no descriptor from here on is open */
};

/* What the kernel keeps for a process, and can be set by its process id. Copied as it is. */
struct worker_attributes {
    uint32_t is_bound;     /* to these CPUs; 0: it runs on every CPU that crun may use */
    struct numa_cpus cpus; /* bound: the only CPUs that it runs on */
};

struct worker_start {
    const char *file; /* a path; PATH is not searched */
    char *const *argv;
    char *const *environment;
    int fds
        [SPAWN_FD_END]; /* by their number in the worker, borrowed. -1: crun's own of 0 to 2, none of the others */
    const struct worker_attributes *attributes; /* NULL: those of crun */
};

#define WORKER_START_NO_FDS                                                                                  \
    {                                                                                                        \
        -1, -1, -1, -1, -1, -1, -1                                                                           \
    }

/* The first bytes, which zygote.py reads, too. */
struct worker_start_head {
    uint32_t n_arguments, n_variables;
    uint32_t descriptors; /* bit i: the start has a descriptor with number i */
    uint32_t texts_at;    /* offset of the strings */
    struct worker_attributes attributes;
};

/* Fills fds with the descriptors that the start has, in the order of their numbers; returns how many. */
int worker_start_list_fds(const struct worker_start *s, int fds[SPAWN_FD_END]);

size_t worker_start_size(const struct worker_start *s);

/* Writes worker_start_size() bytes. */
void worker_start_put(const struct worker_start *s, void *bytes);

/*
 * Describes the start in these bytes, aligned for a pointer, and in these descriptors, which came with them. The result points into
 * the bytes, which get its lists of pointers. 0; -EMFILE: fewer descriptors than the start has; -EBADMSG: no bytes of worker_start_put().
 */
int worker_start_take(void *bytes, size_t size, const int *fds, int n_fds, struct worker_start *ret);
