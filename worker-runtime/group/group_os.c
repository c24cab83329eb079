/*
 * How a group is joined and ends.
 *
 *   1. The failure detector starts: from here on a failed peer ends whatever the rank waits for.
 *   2. Rank 0 makes the shared memory and puts "host pid fd device inode" into the worker store, under a key
 *      with the generation (torchrun keeps one store for all generations) and the number of the group in
 *      the process. The others open the memory through /proc/PID/fd/FD and compare host, device and inode, so
 *      a number with another meaning by now, or elsewhere, is refused.
 *   3. All meet in the memory; each watches the others by pidfd; all pass another barrier as a proof that the
 *      watched processes were the ranks.
 *   4. SIGTERM becomes a request.
 *
 * A world of a single rank does the same alone and needs no store. Where no launcher gave the ranks a private store
 * (crw_init() with an address), the key may be left over from a job before: rank 0 removes the key after
 * the barrier, and the others treat a key that leads nowhere as not yet written.
 *
 * Groups of some ranks: group_members_os.c; from a fork: fork_group_os.c; over several hosts: group_hosts_os.c.
 */

#include "worker-runtime/group/group_os.h"

#include "base/cleanup.h"
#include "proto/wait_sock.h"
#include "worker-runtime/shm/call_signature.h"
#include "worker-runtime/shm/shm_collectives_os.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/stop_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GIVEN_STORE_MS = 5000 }; /* a store that no launcher starts is there, or the address is wrong */

/* Groups made by this process so far. All ranks make theirs in the same order. */
static atomic_int n_groups;

/* ---- memory ---- */

/* The boot of the machine, and the namespace that numbers the processes: ranks that agree in both
 * find each other's memory. "-" where a part cannot be read. */
enum { HOST_NAME_SIZE = 64 };

static void name_host(char name[HOST_NAME_SIZE])
{
    char boot[37] = "-";
    struct stat st = {0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        ssize_t n = read(fd, boot, sizeof(boot) - 1);

        boot[n > 0 ? n : 1] = '\0';
        (void)close(fd); /* only read */
    }
    boot[strcspn(boot, " \n")] = '\0';
    (void)stat("/proc/self/ns/pid", &st); /* 0 where it cannot be read */
    (void)snprintf(name, HOST_NAME_SIZE, "%s/%ju", boot, (uintmax_t)st.st_ino);
}

int group_describe_memory(int fd, char place[GROUP_PLACE_SIZE])
{
    char host[HOST_NAME_SIZE];
    struct stat st;

    if (fstat(fd, &st) < 0)
        return crw_fail_errno(-errno, "cannot examine the group's shared memory");
    name_host(host);
    (void)snprintf(place, GROUP_PLACE_SIZE, "%s %d %d %ju %ju", host, getpid(), fd, (uintmax_t)st.st_dev,
                   (uintmax_t)st.st_ino);
    return 0;
}

/* The place comes from the store, which every user of the machine may be able to write to. Memory of another user, or
 * memory that can be cut off under the mapping, is not the group's. */
static int check_memory_owner(int fd, const struct stat *st, const char *path)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (S_ISREG(st->st_mode) && st->st_uid == geteuid() && seals >= 0 && seals & F_SEAL_SHRINK)
        return 0;
    return crw_fail(
        CRW_E_ENVIRONMENT,
        "the store names %s as the group's shared memory, and that is not memory which a rank of user %u "
        "made: all ranks of a host must run under one user; if they do, another process of this machine "
        "writes to the job's store",
        path, (unsigned)geteuid());
}

int group_open_memory(const char *place, int *ret_fd)
{
    char path[64], host[HOST_NAME_SIZE], own_host[HOST_NAME_SIZE];
    uintmax_t device, inode;
    int pid, number;
    struct stat st;

    if (sscanf(place, "%63s %d %d %ju %ju", host, &pid, &number, &device, &inode) != 5)
        return crw_fail(CRW_E_STORE, "\"%.100s\" is no place of the group's shared memory", place);
    name_host(own_host);
    if (strcmp(host, own_host) != 0)
        return crw_fail(CRW_E_ENVIRONMENT,
                        "the rank that made the group's shared memory is on another host (%s, this is "
                        "%s), or in another PID namespace; ranks with the same GROUP_RANK, and all where "
                        "LOCAL_WORLD_SIZE is WORLD_SIZE, must be on one",
                        host, own_host);
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, number);
    _cleanup_close_ int fd =
        open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* it may be a pipe or a device */
    if (fd < 0 && errno == ENOENT)
        return crw_fail(CRW_E_PEER, "the rank that made the group's shared memory has ended: there is no %s",
                        path);
    if (fd < 0)
        return crw_fail_errno(-errno,
                              "cannot open the group's shared memory at %s; all ranks must run on one host, "
                              "under one user and in one PID namespace",
                              path);
    if (fstat(fd, &st) < 0 || st.st_dev != device || st.st_ino != inode)
        return crw_fail(CRW_E_PEER,
                        "the rank that made the group's shared memory has ended: %s is something else", path);
    TRY(check_memory_owner(fd, &st, path));
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* ---- parts ---- */

struct crw_group *group_new(const struct crw_env *env, int timeout_ms)
{
    struct crw_group *group = calloc(1, sizeof(*group));

    if (!group)
        return NULL;
    group->env = *env;
    group->timeout_ms = timeout_ms;
    group->shm.fd = -1;
    group->detected_group.shm = &group->shm;
    async_queue_init(&group->collectives, group);
    store_conn_init(&group->store, group->env.master_addr, env->master_port, timeout_ms);
    if (!env->launched && timeout_ms > GIVEN_STORE_MS)
        group->store.connect_ms = GIVEN_STORE_MS;
    return group;
}

int group_map(struct crw_group *group, int fd, int rank, int world_size)
{
    _cleanup_close_ int own_fd = fd;
    struct shm_head *head;
    int r = shm_map_memory(own_fd, world_size, &head);

    group->rank = rank;
    group->world_size = world_size;
    if (r == 0)
        r = shm_init(&group->shm, steal_fd(&own_fd), head, true, rank, world_size, group->timeout_ms);
    return r == 0 ? shm_p2p_init(&group->p2p, &group->shm) : r;
}

void group_finish_calls(struct crw_group *group)
{
    async_queue_finish(&group->collectives);
    for (int i = 0; group->message_queues && i < 2 * group->world_size; i++)
        async_queue_finish(&group->message_queues[i]);
    free(group->message_queues);
    group->message_queues = NULL;
    collective_record_finish(&group->record);
}

/* The calls that are under way end first; then the detector is removed, and the memory last. */
void crw_group_destroy(struct crw_group *group)
{
    if (!group)
        return;
    group_finish_calls(group);
    if (group->stop_acquired)
        stop_release(stop_requested() ||
                     (group->detector && failure_detector_stop_requested(group->detector)));
    if (group->detector)
        failure_detector_remove_group(group->detector, &group->detected_group);
    if (group->inter_host)
        inter_host_finish(group->inter_host);
    free(group->inter_host);
    failure_detector_destroy(group->detector);
    shm_p2p_finish(&group->p2p);
    shm_finish(&group->shm);
    store_conn_finish(&group->store);
    free(group->members);
    free(group);
}

int crw_rank(const struct crw_group *group)
{
    return group ? group->rank : -1;
}

int crw_world_size(const struct crw_group *group)
{
    return group ? group->world_size : 0;
}

bool crw_is_primary(const struct crw_group *group)
{
    return group && group->rank == 0;
}

bool crw_stop_requested(const struct crw_group *group)
{
    return stop_requested() || (group && failure_detector_stop_requested(group->detector));
}

/* ---- coming to be ---- */

enum { KEY_SIZE = 64, STALE_PAUSE_MS = 10 };

static int publish_memory(struct crw_group *group, const char *key, int fd)
{
    char place[GROUP_PLACE_SIZE];

    TRY(group_describe_memory(fd, place));
    return store_conn_set(&group->store, key, place, strlen(place));
}

static int find_published(struct crw_group *group, const char *key, int *ret_fd)
{
    _cleanup_free_ void *place = NULL;
    size_t n_bytes;

    TRY(store_conn_get(&group->store, key, -1, &place, &n_bytes));
    return group_open_memory(place, ret_fd);
}

/* Where the store is not ours alone, what leads nowhere is of a job before: rank 0 has not been here yet. */
static int find_memory(struct crw_group *group, const char *key, int *ret_fd)
{
    int64_t deadline_ns = sock_deadline_ns(group->timeout_ms);
    int r;

    for (;;) {
        r = find_published(group, key, ret_fd);
        if ((r != CRW_E_PEER && r != CRW_E_ENVIRONMENT) || group->env.launched ||
            sock_now_ns() >= deadline_ns)
            return r;
        if (store_conn_pause(&group->store, STALE_PAUSE_MS) != 0)
            return r;
    }
}

int group_get_memory(struct crw_group *group, const char *key, bool makes_it, int n_ranks, int *ret_fd)
{
    _cleanup_close_ int fd = -1;

    if (!makes_it)
        return find_memory(group, key, ret_fd);
    TRY(shm_create_memory(n_ranks, &fd));
    if (group->env.world_size > 1)
        TRY(publish_memory(group, key, fd));
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* Takes over fd. */
static int group_join_on(struct crw_group *group, int fd)
{
    TRY(group_map(group, fd, group->env.rank, group->env.world_size));
    failure_detector_add_group(group->detector, &group->detected_group);
    TRY(shm_barrier(&group->shm));
    TRY(failure_detector_watch_peers(group->detector, &group->shm, NULL));
    return shm_barrier(&group->shm);
}

int group_run_call(struct crw_group *group, const struct queued_call *call)
{
    if (call->kind == WORKER_COLLECTIVE_NONE)
        return call->run(group, call);
    collective_record_begin(&group->record, call->kind);
    int r = call->run(group, call);
    collective_record_end(&group->record);
    return r;
}

static int group_join(struct crw_group *group)
{
    int number = atomic_fetch_add(&n_groups, 1);
    char key[KEY_SIZE];
    int fd = -1;

    if (group->env.launched)
        collective_record_init(&group->record, collective_record_world(number), group->env.world_size, true);
    if (group->env.local_world_size != group->env.world_size)
        return group_join_hosts(group, number);
    (void)snprintf(key, sizeof(key), "crw/group/%d/%d", group->env.generation, number);
    TRY(group_get_memory(group, key, group->env.rank == 0, group->env.world_size, &fd));
    TRY(group_join_on(group, fd));
    if (!group->env.launched && group->env.rank == 0 && group->env.world_size > 1)
        TRY(store_conn_delete(&group->store, key));
    return 0;
}

int group_join_again(struct crw_group *group)
{
    atomic_store(&n_groups, 0); /* the new processes begin there, too */
    return group_join(group);
}

static int check_env(const struct crw_env *env)
{
    NEED(memchr(env->master_addr, '\0', sizeof(env->master_addr)), CRW_E_ARGUMENT);
    if (env->world_size < 1 || env->rank < 0 || env->rank >= env->world_size)
        return crw_fail(CRW_E_ARGUMENT, "rank %d of %d ranks is impossible", env->rank, env->world_size);
    if (env->local_world_size > SHM_WORLD_MAX)
        return crw_fail(CRW_E_ENVIRONMENT, "%d ranks on one host are more than the %d that are supported",
                        env->local_world_size, SHM_WORLD_MAX);
    if (env->local_world_size == env->world_size)
        return 0;
    NEED(env->local_rank >= 0 && env->local_rank < env->local_world_size && env->group_rank >= 0 &&
             env->group_rank < env->group_world_size && env->local_world_size < env->world_size,
         CRW_E_ARGUMENT);
    if (env->world_size > WORLD_MAX)
        return crw_fail(CRW_E_ENVIRONMENT, "%d ranks are more than the %d that are supported",
                        env->world_size, WORLD_MAX);
    if (env->group_world_size < 2 || env->group_world_size > 1 << TOPOLOGY_ROUNDS_MAX)
        return crw_fail(CRW_E_ENVIRONMENT,
                        "%d of %d ranks are on this host, but GROUP_WORLD_SIZE is %d "
                        "(of 2 to %d): start the program by crun or torchrun",
                        env->local_world_size, env->world_size, env->group_world_size,
                        1 << TOPOLOGY_ROUNDS_MAX);
    return 0;
}

/* fd -1: the ranks meet through the store. */
static int group_start(struct crw_group *group, int fd)
{
    _cleanup_close_ int own_fd = fd;

    TRY(failure_detector_create(group->env.notice_fd, group->env.generation, group->env.world_size,
                                &group->detector));
    store_conn_set_interrupt(&group->store, failure_detector_failed_fd(group->detector));
    int r = fd < 0 ? group_join(group) : group_join_on(group, steal_fd(&own_fd));
    if (r == 0) {
        stop_acquire();
        group->stop_acquired = true;
    }
    return r;
}

int group_create_on(const struct crw_env *env, int fd, struct crw_group **ret_group)
{
    _cleanup_close_ int own_fd = fd;
    int timeout_ms;

    TRY(check_env(env));
    TRY(env_timeout_ms(&timeout_ms));
    struct crw_group *group = group_new(env, timeout_ms);
    if (!group)
        return crw_fail_errno(-ENOMEM, "cannot make a group");
    int r = group_start(group, steal_fd(&own_fd));
    if (r)
        crw_group_destroy(group);
    else
        *ret_group = group;
    return r;
}

int crw_group_create(const struct crw_env *env, struct crw_group **ret_group)
{
    NEED(env && ret_group, CRW_E_ARGUMENT);
    return group_create_on(env, -1, ret_group);
}

int crw_init(const char *address, int rank, int world_size, struct crw_group **ret_group)
{
    struct crw_env env;
    NEED(ret_group, CRW_E_ARGUMENT);

    TRY(address ? env_from_address(address, rank, world_size, &env) : crw_env_read(&env));
    return crw_group_create(&env, ret_group);
}

int crw_finish(struct crw_group *group)
{
    int r = group ? crw_barrier(group) : 0;

    crw_group_destroy(group);
    return r;
}

/* ---- store ---- */

/* The store only knows that the wait was interrupted; the group knows by which rank. */
static int store_result(const struct crw_group *group, int r)
{
    return r == CRW_E_PEER ? shm_fail_result(&group->shm, group->shm.rank) : r;
}

int crw_store_set(struct crw_group *group, const char *key, const void *value, size_t n_bytes)
{
    NEED(group && key && is_array(value, n_bytes, 1), CRW_E_ARGUMENT);
    return store_result(group, store_conn_set(&group->store, key, value, n_bytes));
}

int crw_store_get(struct crw_group *group, const char *key, int timeout_ms, void **ret_value,
                  size_t *ret_n_bytes)
{
    NEED(group && key && ret_value && ret_n_bytes, CRW_E_ARGUMENT);
    return store_result(group, store_conn_get(&group->store, key, timeout_ms, ret_value, ret_n_bytes));
}

int crw_store_add(struct crw_group *group, const char *key, int64_t amount, int64_t *ret_value)
{
    NEED(group && key && ret_value, CRW_E_ARGUMENT);
    return store_result(group, store_conn_add(&group->store, key, amount, ret_value));
}
