/*
 * The thread polls a few descriptors without a time-out. An eventfd wakes it for new ones and for its
 * end. Every rank watches all others of its host itself, so that no death is missed because the rank
 * that should have reported it died as well.
 *
 * A peer that destroyed its group before it ended has not failed: a rank that still waits for it is
 * freed by the mark that it left (shm_finish()).
 */

#include "worker-runtime/shm/failure_detector_os.h"

#include "base/cond_os.h"
#include "base/lock_os.h"
#include "base/thread_os.h"
#include "base/time.h"
#include "proto/worker_notice.h"
#include "worker-runtime/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct failure_detector {
    pthread_t thread;
    int notice_fd;   /* the launcher's; never closed here. The thread's: -1 once it is at its end */
    int launcher_fd; /* the same, to send to the launcher */
    bool has_launcher;
    int generation;
    int world_size;
    int wake_fd;           /* to the thread */
    int failed_fd;         /* from the thread */
    struct pollfd *polled; /* the thread's */

    pthread_mutex_t lock;        /* for all below */
    pthread_cond_t changed;      /* the next generation */
    struct next_generation next; /* the newest generation that the launcher announced */
    bool no_next;                /* there will be no other */
    bool joining;                /* the ranks of this one have not all met */
    unsigned n_renewed;          /* so that the thread knows what it has polled before */
    int n_users;
    bool closing, failed;
    bool by_launcher;           /* by the launcher: that is for all groups, also later ones */
    struct shm_failure failure; /* the first one; rank: of the world */
    struct detected_group *groups;
    void (*notify)(void *data, int rank);
    void *notify_data;
    struct pollfd *peers; /* by rank of the world; fd -1: not watched, or not any more */

    struct failure_detector *next_launched; /* under launched_lock */

    atomic_bool stop_requested;
};

/*
 * Several worlds of one process have the launcher's socket in common, and each record can be read only once: the detector
 * that reads it passes it to all. Lock order: this one, then that of a detector.
 */
static pthread_mutex_t launched_lock = PTHREAD_MUTEX_INITIALIZER;
static struct failure_detector *launched; /* the detectors that have a launcher */

static void signal_fd(int fd)
{
    const uint64_t one = 1;

    (void)!write(fd, &one, sizeof(one)); /* an eventfd far from its maximum takes it */
}

/* ---- the thread ---- */

static int group_size(const struct detected_group *group)
{
    return group->topology ? group->topology->world_size : group->shm->world_size;
}

/* The number in the group of a rank of the world; -1: it is no member. A notice of the launcher may name a rank on
 * another host. */
static int member_number(const struct detected_group *group, int rank)
{
    if (!group->members)
        return rank;
    for (int i = 0; i < group_size(group); i++)
        if (group->members[i] == rank)
            return i;
    return -1;
}

/* A rank of another host never counts as left here: its net has been notified of the leave and does
 * not report the end. */
static bool member_has_left(const struct detected_group *group, int number)
{
    if (!group->topology)
        return shm_has_left(group->shm, number);
    return group->topology->host_of[number] == group->topology->host &&
           shm_has_left(group->shm, group->topology->local_of[number]);
}

static void end_group(struct detected_group *group, struct shm_failure failure)
{
    failure.rank = member_number(group, failure.rank);
    shm_fail(group->shm, failure);
    if (group->ended)
        group->ended(group->data);
}

/* Caller holds the lock and has ended the groups: a thread that wakes from failed_fd asks a group for
 * the reason. */
static void keep_failure(struct failure_detector *detector, struct shm_failure failure)
{
    if (!detector->failed) {
        detector->failed = true;
        detector->failure = failure;
        signal_fd(detector->failed_fd);
    }
}

/* Caller holds the lock. A notice of the launcher ends all groups: it is about to end all ranks, or
 * to replace some. */
static void note_failure(struct failure_detector *detector, struct shm_failure failure)
{
    detector->by_launcher = true;
    for (struct detected_group *group = detector->groups; group; group = group->next)
        end_group(group, failure);
    keep_failure(detector, failure);
}

static void note_no_next(struct failure_detector *detector)
{
    detector->no_next = true;
    pthread_cond_broadcast(&detector->changed);
}

/* A notice applies to the current generation, or to the next one that the launcher has announced. */
static bool is_current(const struct failure_detector *detector, const struct worker_notice *notice)
{
    return (int)notice->generation == detector->generation ||
           (int)notice->generation == detector->next.generation;
}

/* Publishes the new generation and the failure of the old one in one critical section: a waiter that
 * sees the generation resets the failure state, so a failure recorded later would abort the new
 * generation. */
static void note_generation(struct failure_detector *detector, const struct worker_notice *notice)
{
    if ((int)notice->generation <= detector->next.generation)
        return;
    detector->next =
        (struct next_generation){.generation = (int)notice->generation, .port = (uint16_t)notice->detail};
    pthread_cond_broadcast(&detector->changed);
    note_failure(detector, (struct shm_failure){SHM_FAILURE_DIED, notice->rank, 0});
}

static void take_notice(struct failure_detector *detector, const struct worker_notice *notice)
{
    hold_lock(&detector->lock);
    if (notice->kind == NOTICE_GENERATION) {
        note_generation(detector, notice);
    } else if (notice->kind == NOTICE_PEER_FAILED && is_current(detector, notice)) {
        note_no_next(detector);
        note_failure(detector, (struct shm_failure){SHM_FAILURE_DIED, notice->rank, notice->detail});
    } else if (notice->kind == NOTICE_STOP && is_current(detector, notice)) {
        note_no_next(detector);
        atomic_store(&detector->stop_requested, true);
        if (detector
                ->joining) /* a rank that this one waits for may have ended by the signal before it was watched */
            note_failure(detector, (struct shm_failure){SHM_FAILURE_DIED, -1, 0});
    }
}

static void pass_notice(const struct failure_detector *reader, const struct worker_notice *notice)
{
    hold_lock(&launched_lock);
    for (struct failure_detector *detector = launched; detector; detector = detector->next_launched)
        if (detector->launcher_fd == reader->launcher_fd)
            take_notice(detector, notice);
}

/* Reads what has come; the socket is not watched any more when it is at its end. */
static void read_notices(struct failure_detector *detector)
{
    for (;;) {
        uint8_t record[NOTICE_SIZE];
        struct worker_notice notice;
        ssize_t n = recv(detector->notice_fd, record, sizeof(record), MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            detector->notice_fd = -1; /* the launcher has ended, and this process will soon */
            pthread_mutex_lock(&detector->lock);
            note_no_next(detector);
            pthread_mutex_unlock(&detector->lock);
            return;
        }
        if (worker_notice_decode(record, (size_t)n, &notice))
            pass_notice(detector, &notice);
    }
}

/* What the launcher sent before this detector was there: its other worlds know. Caller holds launched_lock. */
static void copy_notices(struct failure_detector *detector, struct failure_detector *from)
{
    hold_lock(&from->lock);
    if (from->generation == detector->generation) {
        detector->no_next = from->no_next;
        detector->next = from->next;
        atomic_store(&detector->stop_requested, atomic_load(&from->stop_requested));
        if (from->by_launcher)
            note_failure(detector, from->failure);
    }
}

static void join_launched(struct failure_detector *detector)
{
    hold_lock(&launched_lock);
    for (struct failure_detector *other = launched; other; other = other->next_launched)
        if (other->launcher_fd == detector->launcher_fd)
            copy_notices(detector, other);
    detector->next_launched = launched;
    launched = detector;
}

static void leave_launched(struct failure_detector *detector)
{
    hold_lock(&launched_lock);
    for (struct failure_detector **at = &launched; *at; at = &(*at)->next_launched) {
        if (*at == detector) {
            *at = detector->next_launched;
            break;
        }
    }
}

/* With the lock held. The end of a process ends the groups that it was a member of and had not left; whether
 * there was one. */
static bool end_groups_of(struct failure_detector *detector, struct shm_failure failure)
{
    bool any = false;

    for (struct detected_group *group = detector->groups; group; group = group->next) {
        int number = member_number(group, failure.rank);

        if (number >= 0 && !member_has_left(group, number)) {
            end_group(group, failure);
            keep_failure(detector, failure);
            any = true;
        }
    }
    return any;
}

static void note_end_of_peer(struct failure_detector *detector, int rank, unsigned n_renewed)
{
    const struct shm_failure failure = {.kind = SHM_FAILURE_DIED, .rank = rank};

    hold_lock(&detector->lock);
    if (detector->n_renewed != n_renewed)
        return;                               /* of a process of the generation before */
    cleanup_close(&detector->peers[rank].fd); /* a pidfd: nothing is pending */
    detector->peers[rank].fd = -1;
    if (end_groups_of(detector, failure) && detector->notify)
        detector->notify(detector->notify_data, rank);
}

void failure_detector_note_end(struct failure_detector *detector, struct shm_failure failure)
{
    hold_lock(&detector->lock);
    (void)end_groups_of(detector, failure); /* the net has notified the other hosts already */
}

void failure_detector_set_notifier(struct failure_detector *detector, void (*notify)(void *data, int rank),
                                   void *data)
{
    hold_lock(&detector->lock);
    detector->notify = notify;
    detector->notify_data = data;
}

/* The launcher reports a failure within milliseconds; this is for a machine that stands still. */
enum { NEXT_GENERATION_S = 10 };

enum { SLOT_WAKE, SLOT_NOTICE, SLOT_PEERS };

/* Fills in what to poll: wake, notice, then the peers by rank. False when the thread shall end. */
static bool collect_polled(struct failure_detector *detector, struct pollfd *fds, unsigned *ret_n_renewed)
{
    fds[SLOT_WAKE] = (struct pollfd){.fd = detector->wake_fd, .events = POLLIN};
    fds[SLOT_NOTICE] = (struct pollfd){.fd = detector->notice_fd, .events = POLLIN};
    hold_lock(&detector->lock);
    *ret_n_renewed = detector->n_renewed;
    memcpy(fds + SLOT_PEERS, detector->peers, (size_t)detector->world_size * sizeof(*fds));
    return !detector->closing;
}

static void *failure_detector_run(void *data)
{
    struct failure_detector *detector = data;
    struct pollfd *fds = detector->polled;
    unsigned n_renewed;

    while (collect_polled(detector, fds, &n_renewed)) {
        if (poll(fds, SLOT_PEERS + (nfds_t)detector->world_size, -1) < 0)
            continue; /* interrupted: signals are blocked here, but a debugger may stop us */
        if (fds[SLOT_WAKE].revents) {
            uint64_t count;

            (void)!read(detector->wake_fd, &count, sizeof(count)); /* only to empty it */
        }
        if (fds[SLOT_NOTICE].revents)
            read_notices(detector);
        for (int rank = 0; rank < detector->world_size; rank++)
            if (fds[SLOT_PEERS + rank].revents)
                note_end_of_peer(detector, rank, n_renewed);
    }
    return NULL;
}

/* ---- the caller's side ---- */

/* The number may be inherited from a parent, and the descriptor be used for something else by now. */
static bool is_notice_socket(int fd)
{
    int type = 0, domain = 0;
    socklen_t size = sizeof(int);

    return fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET &&
           getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

static void failure_detector_free(struct failure_detector *detector)
{
    cleanup_close(&detector->wake_fd); /* an eventfd: nothing is pending */
    cleanup_close(&detector->failed_fd);
    for (int i = 0; detector->peers && i < detector->world_size; i++)
        cleanup_close(&detector->peers[i].fd);
    free(detector->peers);
    free(detector->polled);
    pthread_cond_destroy(&detector->changed);
    pthread_mutex_destroy(&detector->lock);
    free(detector);
}

/* What can fail, in order; failure_detector_free() undoes as much as was done. */
static int failure_detector_start(struct failure_detector *detector)
{
    detector->polled = calloc(SLOT_PEERS + (size_t)detector->world_size, sizeof(*detector->polled));
    detector->peers = calloc((size_t)detector->world_size, sizeof(*detector->peers));
    if (!detector->polled || !detector->peers)
        return -ENOMEM;
    for (int i = 0; i < detector->world_size; i++)
        detector->peers[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    detector->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (detector->wake_fd < 0)
        return -errno;
    detector->failed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (detector->failed_fd < 0)
        return -errno;
    /* Processes that this one starts do not inherit the notice socket. */
    if (detector->notice_fd >= 0 && fcntl(detector->notice_fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    if (detector->has_launcher)
        join_launched(detector);
    int r = thread_start(&detector->thread, failure_detector_run, detector);
    if (r < 0)
        leave_launched(detector);
    return r;
}

static void send_notice(struct failure_detector *detector, enum worker_notice_kind kind, int rank)
{
    const struct worker_notice notice = {
        .kind = kind, .generation = (uint32_t)detector->generation, .rank = rank};
    uint8_t record[NOTICE_SIZE];

    if (!detector->has_launcher)
        return;
    worker_notice_encode(&notice, record);
    /* A launcher that does not read the record replaces no rank. */
    (void)send(detector->launcher_fd, record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL);
}

int failure_detector_create(int notice_fd, int generation, int world_size, struct failure_detector **ret)
{
    struct failure_detector *detector = calloc(1, sizeof(*detector));

    if (!detector)
        return crw_fail_errno(-ENOMEM, "cannot watch for failures of peers");
    detector->notice_fd = detector->launcher_fd = is_notice_socket(notice_fd) ? notice_fd : -1;
    detector->has_launcher = detector->notice_fd >= 0;
    detector->generation = generation;
    detector->world_size = world_size;
    detector->n_users = 1;
    detector->wake_fd = detector->failed_fd = -1;
    pthread_mutex_init(&detector->lock, NULL);
    cond_init(&detector->changed);
    detector->next.generation = generation;
    int r = failure_detector_start(detector);
    if (r < 0) {
        failure_detector_free(detector);
        return crw_fail_errno(r, "cannot watch for failures of peers");
    }
    send_notice(detector, NOTICE_JOINING, -1);
    *ret = detector;
    return 0;
}

struct failure_detector *failure_detector_share(struct failure_detector *detector)
{
    hold_lock(&detector->lock);
    detector->n_users++;
    return detector;
}

void failure_detector_destroy(struct failure_detector *detector)
{
    if (!detector)
        return;
    pthread_mutex_lock(&detector->lock);
    bool last = --detector->n_users == 0;
    detector->closing = last;
    pthread_mutex_unlock(&detector->lock);
    if (!last)
        return;
    leave_launched(detector);
    signal_fd(detector->wake_fd);
    pthread_join(detector->thread, NULL);
    failure_detector_free(detector);
}

void failure_detector_add_group(struct failure_detector *detector, struct detected_group *group)
{
    hold_lock(&detector->lock);
    group->next = detector->groups;
    detector->groups = group;
    if (detector->failed && (detector->by_launcher || member_number(group, detector->failure.rank) >= 0))
        end_group(group, detector->failure);
}

void failure_detector_remove_group(struct failure_detector *detector, struct detected_group *group)
{
    hold_lock(&detector->lock);
    for (struct detected_group **at = &detector->groups; *at; at = &(*at)->next) {
        if (*at == group) {
            *at = group->next;
            break;
        }
    }
}

int failure_detector_watch_peers(struct failure_detector *detector, const struct shm *world, const int *ranks)
{
    for (int i = 0; i < world->world_size; i++) {
        int rank = ranks ? ranks[i] : i, fd;

        if (i == world->rank)
            continue;
        fd = (int)syscall(SYS_pidfd_open, shm_pid_of(world, i), 0);
        if (fd < 0 && errno == ESRCH) {
            note_end_of_peer(detector, rank, detector->n_renewed); /* only we change it */
            return shm_fail_result(world, i);
        }
        if (fd < 0)
            return crw_fail_errno(-errno, "cannot watch the process of rank %d", rank);
        pthread_mutex_lock(&detector->lock);
        detector->peers[rank].fd = fd;
        pthread_mutex_unlock(&detector->lock);
    }
    signal_fd(detector->wake_fd);
    return 0;
}

int failure_detector_await_generation(struct failure_detector *detector, struct next_generation *ret)
{
    const uint64_t until_ns = now_ns() + NEXT_GENERATION_S * UINT64_C(1000000000);
    int r = 0;

    hold_lock(&detector->lock);
    if (!detector->has_launcher)
        detector->no_next = true;
    while (!detector->no_next && detector->next.generation <= detector->generation && r != ETIMEDOUT)
        r = cond_wait_until(&detector->changed, &detector->lock, until_ns);
    if (!detector->no_next && detector->next.generation <= detector->generation)
        return crw_fail(CRW_E_PEER,
                        "a peer has ended, and the launcher has not announced a new generation within %d s",
                        NEXT_GENERATION_S);
    *ret = detector->next;
    return detector->no_next ? crw_fail(CRW_E_PEER,
                                        "a peer failed and the launcher does not replace workers, "
                                        "so the group is over")
                             : 0;
}

void failure_detector_renew(struct failure_detector *detector, int generation)
{
    uint64_t count;

    pthread_mutex_lock(&detector->lock);
    detector->generation = generation;
    detector->n_renewed++;
    detector->joining = true;
    detector->failed = detector->by_launcher = false;
    for (int i = 0; i < detector->world_size; i++) {
        cleanup_close(&detector->peers[i].fd); /* a pidfd: nothing is pending */
        detector->peers[i].fd = -1;
    }
    (void)!read(detector->failed_fd, &count, sizeof(count)); /* only to empty it */
    /* A notice about a generation after that one still counts. */
    if (detector->no_next || detector->next.generation > generation) {
        detector->failed = detector->by_launcher = true;
        detector->failure = (struct shm_failure){SHM_FAILURE_DIED, -1, 0};
        signal_fd(detector->failed_fd);
    }
    pthread_mutex_unlock(&detector->lock);
    signal_fd(detector->wake_fd);
}

void failure_detector_note_formed(struct failure_detector *detector)
{
    hold_lock(&detector->lock);
    detector->joining = false;
}

void failure_detector_send_ready(struct failure_detector *detector, int rank)
{
    send_notice(detector, NOTICE_READY, rank);
}

int failure_detector_failed_fd(const struct failure_detector *detector)
{
    return detector->failed_fd;
}

bool failure_detector_stop_requested(const struct failure_detector *detector)
{
    return atomic_load(&detector->stop_requested);
}
