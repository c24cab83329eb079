#pragma once

/*
 * Failure detector: a thread that waits for records on the launcher's notice socket and for the ends of
 * peer processes (pidfd). It ends the groups in shared memory, which frees every collective of the host,
 * and makes a descriptor readable, which frees threads that wait for the store. One for each world; the
 * groups of some of its ranks share it.
 */

#include "worker-runtime/shm/topology.h"
#include "worker-runtime/shm/shm_os.h"

#include <stdbool.h>

struct failure_detector;

/* notice_fd: CRUN_NOTICE_FD, -1 for none; one that is no notice socket is ignored. generation: records of
 * another one are dropped. 0 or -errno. */
int failure_detector_create(int notice_fd, int generation, int world_size, struct failure_detector **ret);

/* One more user, which has to destroy it as well. */
struct failure_detector *failure_detector_share(struct failure_detector *detector);

/* The last user ends the thread. NULL is fine. */
void failure_detector_destroy(struct failure_detector *detector);

/* A group of ranks that the detector ends; the caller owns the memory until it is removed. */
struct detected_group {
    struct shm *shm;
    const int *members; /* their ranks in the world, in order; NULL: the world itself */
    const struct topology
        *topology; /* of a group over several hosts, of which shm is this host's part; else NULL */
    void (*ended)(
        void *
            data); /* called after the group was ended here, by any thread; NULL: no thread waits elsewhere */
    void *data;
    struct detected_group *next;
};

/* From now on failures of members end this group; one that came before does so at once. */
void failure_detector_add_group(struct failure_detector *detector, struct detected_group *group);
/* Of a group that was not added: nothing happens. */
void failure_detector_remove_group(struct failure_detector *detector, struct detected_group *group);

/*
 * Watches the processes of all other ranks of this host, whose process numbers are in the world's shared
 * memory. ranks: what they are in the world; NULL: the same. Only when the ranks have passed another
 * barrier afterwards is it certain that no number belonged to another process. 0, CRW_E_PEER (one has
 * ended already; the group is ended), -errno.
 */
int failure_detector_watch_peers(struct failure_detector *detector, const struct shm *world,
                                 const int *ranks);

/* The end of a rank of another host, reported by the net. */
void failure_detector_note_end(struct failure_detector *detector, struct shm_failure failure);

/* Callback that notifies other hosts of the ends of processes here: called with the rank, by the
 * detector's thread, with its lock held. NULL: none. */
void failure_detector_set_notifier(struct failure_detector *detector, void (*notify)(void *data, int rank),
                                   void *data);

/* Readable for good once something failed. Poll it, do not read it. */
int failure_detector_failed_fd(const struct failure_detector *detector);

/* What the launcher starts after a failure. */
struct next_generation {
    int generation;
    uint16_t port; /* of its store */
};

/* Waits for the launcher's decision. 0: there is a newer generation. CRW_E_PEER: there will be none,
 * or there is no launcher. */
int failure_detector_await_generation(struct failure_detector *detector, struct next_generation *ret);
/* Forgets the failures of the old generation and stops watching peers. Groups of before stay ended. */
void failure_detector_renew(struct failure_detector *detector, int generation);
/* The ranks have joined. Until then a stop request ends the groups. */
void failure_detector_note_formed(struct failure_detector *detector);
/* Reports to the launcher that this rank can be taken into a next generation. Without a launcher
 * nothing happens. */
void failure_detector_send_ready(struct failure_detector *detector, int rank);

/* The launcher has announced that it is going to stop the job. */
bool failure_detector_stop_requested(const struct failure_detector *detector);
