#pragma once

/*
 * The start of a worker: program, descriptors and attributes. A single description for every way to start: the struct for a
 * fork and exec (spawn_worker_os.h), and the struct's bytes for a start by another process. crun sends the bytes with an
 * order to the guardian (guardian_orders_os.h). The guardian takes the bytes back into a struct, or passes the bytes on to
 * the zygote (zygote_os.h).
 *
 * A new attribute of workers is a member of struct worker_attributes, a line in describe_attributes() (agent/generation_uv.c)
 * with the value, and a line in spawn_set_attributes(); workers get the attribute when started cold, warm or as a replacement. A new descriptor is a number below, and LAST_FD in zygote.py.
 *
 * Bytes, in the order and alignment of the machine: the head, room for the pointers of both lists, then the strings with
 * their NULs: the file, the arguments, the environment.
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
    SPAWN_BLOCKS_FD, /* see proto/state_blocks.h */
    SPAWN_FD_END,    /* no descriptor from here on is open */
};

/* Attributes kept by the kernel for a process and set by process id. Copied byte by byte. */
struct worker_attributes {
    uint32_t is_bound;     /* 1: bound to cpus; 0: runs on every CPU that crun may use */
    struct numa_cpus cpus; /* bound: the only CPUs of the worker */
};

struct worker_start {
    const char *file; /* a path; PATH is not searched */
    char *const *argv;
    char *const *environment;
    int fds
        [SPAWN_FD_END]; /* by number in the worker, borrowed. -1: crun's own for 0 to 2, else no descriptor */
    const struct worker_attributes *attributes; /* NULL: the attributes of crun */
};

#define WORKER_START_NO_FDS                                                                                  \
    {                                                                                                        \
        -1, -1, -1, -1, -1, -1, -1, -1                                                                       \
    }

/* The first bytes, also read by zygote.py. */
struct worker_start_head {
    uint32_t n_arguments, n_variables;
    uint32_t descriptors; /* bit i: the start has a descriptor with number i */
    uint32_t texts_at;    /* offset of the strings */
    struct worker_attributes attributes;
};

/* Fills fds with the descriptors of the start, in the order of their numbers; returns the number of descriptors. */
int worker_start_list_fds(const struct worker_start *s, int fds[SPAWN_FD_END]);

size_t worker_start_size(const struct worker_start *s);

/* Writes worker_start_size() bytes. */
void worker_start_put(const struct worker_start *s, void *bytes);

/*
 * Reads the start from bytes, aligned for a pointer, and from the descriptors sent with the bytes. The result points into
 * the bytes, where the lists of pointers are written. 0; -EMFILE: fewer descriptors than the start has; -EBADMSG: the bytes
 * are not from worker_start_put().
 */
int worker_start_take(void *bytes, size_t size, const int *fds, int n_fds, struct worker_start *ret);
