#pragma once

/*
 * What a process group is made of; for the files that make groups and for those that use them.
 */

#include "worker-runtime/shm/shm_p2p_os.h"
#include "worker-runtime/shm/shm_os.h"
#include "worker-runtime/net/inter_host_sock.h"
#include "worker-runtime/shm/failure_detector_os.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/group/store_conn_sock.h"
#include "worker-runtime/group/async_queue_os.h"
#include "worker-runtime/group/collective_record_os.h"

struct crw_group {
    struct crw_env env; /* of the world that the group is part of */
    int timeout_ms;
    struct failure_detector *detector; /* shared with the groups that were made from this one */
    struct detected_group detected_group;
    struct store_conn store;
    int rank, world_size;          /* of this group */
    struct shm shm;                /* the ranks of this host */
    struct shm_p2p p2p;            /* between them */
    struct inter_host *inter_host; /* the other hosts; NULL: there are none */
    struct async_queue collectives;
    struct async_queue
        *message_queues; /* for messages: two for each peer, to and from; NULL before the first is started */
    int *members;        /* their ranks in the world, in order; NULL: the world itself */
    bool stop_acquired;
    struct collective_record record; /* of the collectives of this group, for crun */
};

/* A group that has nothing yet: what crw_group_destroy() accepts. NULL: no memory. */
struct crw_group *group_new(const struct crw_env *env, int timeout_ms);

/* Rank 0 (of a host) makes the memory and puts it under the key, the others find it there. */
int group_get_memory(struct crw_group *group, const char *key, bool makes_it, int n_ranks, int *ret_fd);

/* Makes this process a rank of the group (or of a host's part of it) in the memory behind fd; takes
 * over fd. */
int group_map(struct crw_group *group, int fd, int rank, int world_size);

/* The world in memory that all ranks have without a store; takes over fd. */
int group_create_on(const struct crw_env *env, int fd, struct crw_group **ret_group);

/* Waits for the calls that were started, and ends their queues. */
void group_finish_calls(struct crw_group *group);

/* Runs the call on this thread, with its record for crun. */
int group_run_call(struct crw_group *group, const struct queued_call *call);

/* Joins again through the store, as the first group of a process does. Results of crw_group_create(). */
int group_join_again(struct crw_group *group);

/* group_hosts_os.c: joins the world over several hosts; number: of the group in this process. */
int group_join_hosts(struct crw_group *group, int number);
/* The mapped memory is this host's part of a group of world_size ranks. keys: see inter_host_init(). */
int group_set_hosts(struct crw_group *group, struct net *net, uint32_t id, const int *keys, int n_keys,
                    int rank, int world_size);

/* Collective, needs no memory: 0 on all ranks when result is 0 on all; else this rank's own, or that of the lowest rank
 * that failed. */
int group_agree(struct crw_group *group, int result);

/* "host pid fd device inode": where another process of this host finds the memory behind fd. 0 or -errno. */
enum { GROUP_PLACE_SIZE = 160 };
int group_describe_memory(int fd, char place[GROUP_PLACE_SIZE]);
/* CRW_E_STORE: that is no place; CRW_E_PEER: it is not there any more; CRW_E_ENVIRONMENT: on another host; -errno. */
int group_open_memory(const char *place, int *ret_fd);
