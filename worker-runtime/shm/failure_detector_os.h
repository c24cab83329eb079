#pragma once

/*
 * A thread that waits for bad news, so that the thread that trains need not: records on the launcher's
 * notice socket, and the end of a peer's process (pidfd). It ends the groups in shared memory, which frees
 * every collective of the host, and makes a descriptor readable, which frees whoever waits for the store.
 * One for the world; the groups of some of its ranks share it.
 */

#include "worker-runtime/shm/topology.h"
#include "worker-runtime/shm/shm_os.h"

#include <stdbool.h>

struct watch;

/* notice_fd: CRUN_NOTICE_FD, -1 for none; one that is no notice socket is ignored. generation: records of
 * another one are dropped. 0 or -errno. */
int watch_create(int notice_fd, int generation, int world_size, struct watch **ret);

/* One more user, who has to destroy it as well. */
struct watch *watch_share(struct watch *w);

/* The last user ends the thread. NULL is fine. */
void watch_destroy(struct watch *w);

/* A group of ranks, in the memory of whoever adds it. */
struct watched {
    struct shm *shm;
    const int *members; /* their ranks in the world, in order; NULL: the world itself */
    const struct hosts
        *hosts; /* of a group over several hosts, of which shm is this host's part; else NULL */
    void (*ended)(
        void *data); /* called after the group was ended here, by any thread; NULL: nobody waits elsewhere */
    void *data;
    struct watched *next;
};

/* From now on failures of members end this group; one that came before does so at once. */
void watch_add_group(struct watch *w, struct watched *group);
/* Of a group that was not added: nothing happens. */
void watch_remove_group(struct watch *w, struct watched *group);

/* Watches the processes of all other ranks of this host, whose numbers are in the world's shared memory. ranks:
 * what they are in the world; NULL: the same. That no number is
 * somebody else's by now is known once the ranks have met again afterwards. 0, CRW_E_PEER (one is gone
 * already; the group is ended), -errno. */
int watch_peers(struct watch *w, const struct shm *world, const int *ranks);

/* The end of a rank of another host, as the network tells it. */
void watch_note_end(struct watch *w, struct shm_failure failure);

/* Who tells other hosts of the ends of processes here: called with the rank, by the thread, with locks held. NULL:
 * nobody. */
void watch_set_teller(struct watch *w, void (*tell)(void *data, int rank), void *data);

/* Readable for good once something failed. Poll it, do not read it. */
int watch_failed_fd(const struct watch *w);

/* The launcher's word on what comes after a failure. */
struct watch_word {
    int generation;
    uint16_t port; /* of its store */
};

/* Waits for it. 0: there is a newer generation. CRW_E_PEER: it is over, or there is no launcher to say. */
int watch_wait_for_word(struct watch *w, struct watch_word *ret);
/* All that was learnt of failures belongs to the past, and peers are not watched any more. Groups of before stay
 * ended. */
void watch_renew(struct watch *w, int generation);
/* The ranks have met: until then a wish to stop ends the groups. */
void watch_note_formed(struct watch *w);
/* To the launcher: this rank can wait for its word. Without one nothing happens. */
void watch_say_ready(struct watch *w, int rank);

/* The launcher said that it is going to stop. */
bool watch_stop_requested(const struct watch *w);
