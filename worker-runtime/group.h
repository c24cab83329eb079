#pragma once

/*
 * What a process group is made of; for the files that make groups and for those that use them.
 */

#include "worker-runtime/comm_p2p.h"
#include "worker-runtime/comm_shm.h"
#include "worker-runtime/comm_watch.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/store_sock.h"
#include "worker-runtime/work.h"

struct crw_group {
    struct crw_env env; /* of the world that the group is part of */
    int timeout_ms;
    struct watch *watch; /* shared with the groups that were made from this one */
    struct watched watched;
    struct store store;
    struct shm shm; /* here are this group's own rank and size */
    struct p2p p2p;
    struct lane collectives;
    struct lane *lanes; /* for messages: two for each peer, to and from; NULL before the first is started */
    int *members;       /* their ranks in the world, in order; NULL: the world itself */
    bool stop_acquired;
};

/* A group that has nothing yet: what crw_group_destroy() accepts. NULL: no memory. */
struct crw_group *group_new(const struct crw_env *env, int timeout_ms);

/* Becomes that rank of the group whose memory fd is; takes over fd. */
int group_map(struct crw_group *group, int fd, int rank, int world_size);

/* The world from memory that all ranks have from elsewhere than the store; takes over fd. */
int group_create_on(const struct crw_env *env, int fd, struct crw_group **ret_group);

/* "pid fd device inode": where another process finds the memory behind fd. 0 or -errno. */
enum { GROUP_PLACE_SIZE = 128 };
int group_describe_memory(int fd, char place[GROUP_PLACE_SIZE]);
/* CRW_E_STORE: that is no place; CRW_E_PEER: it is not there any more; -errno. */
int group_open_memory(const char *place, int *ret_fd);
