#pragma once

/*
 * The guardian: a small process between crun and the workers. The guardian is the parent of the workers and the subreaper
 * of every process started by a worker ("shepherd" or "slurmstepd" elsewhere), for all generations of the job. Thanks to
 * the guardian no process of a job outlives crun, however crun ends.
 *
 * crun and the guardian are connected by a SOCK_SEQPACKET socket, the link: orders go down, reports go up. The guardian
 * decides nothing, but starts, signals, reaps and reports. When the link ends (crun has ended), the guardian kills all its
 * children and sends crun's death notice.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct job_cgroup_shared;
struct logs;
struct named_file;
struct worker_start;

enum guardian_order_kind {
    GUARDIAN_SIGNAL = 1,  /* to the process group of every worker, and to every orphan; see group_delay_ms */
    GUARDIAN_PASS_SIGNAL, /* to every worker process alone; no request to end */
    GUARDIAN_FREEZE, /* SIGSTOP or SIGCONT to the process group of every worker, and to every orphan; as above */
    GUARDIAN_KILL,        /* SIGKILL to every process, again and again until none is left */
    GUARDIAN_KILL_WORKER, /* SIGKILL to the process group of `worker` */
    GUARDIAN_START, /* start a process for `worker`, also after the end of an earlier process (guardian_orders_os.h); processes
                       left in the session of an earlier process of the same generation are killed */
    GUARDIAN_RELEASE, /* crun is being ended by a signal: when the link ends, SIGTERM and the grace come before
                             SIGKILL, so that workers can save their state */
    GUARDIAN_BEGIN,   /* a generation begins, with GUARDIAN_START for each worker */
    GUARDIAN_LEASE, /* as GUARDIAN_KILL, at time_ns by CLOCK_BOOTTIME; 0: never; replaces an earlier lease */
    GUARDIAN_END,   /* the job has ended: end */
};

struct guardian_order {
    uint32_t kind;
    int32_t signal;
    int32_t worker;
    int32_t error;    /* set by the receiver: errno when a part of the order did not arrive */
    uint64_t time_ns; /* GUARDIAN_LEASE */
};

enum guardian_report_kind {
    GUARDIAN_STARTED = 1, /* worker: has executed its program, as pid */
    GUARDIAN_EXEC_FAILED, /* worker: could not; value: errno. No further worker is started */
    GUARDIAN_EXITED,      /* worker: ended; value: wait status. In the kernel's order */
    GUARDIAN_ORPHANS,     /* all workers have ended; value: number of processes left */
    GUARDIAN_EMPTY, /* no process of the generation is left; value 1: left processes cannot be listed, the guardian ends */
    GUARDIAN_SIGNALLED, /* worker: the worker or a process of its session (pid) sent signal `value` to its parent */
    GUARDIAN_ZYGOTE, /* a report of the zygote (zygote_os.h); value: kind of the report; text; members named in zygote_os.h */
};

enum { GUARDIAN_TEXT_SIZE = 200 };

struct guardian_report {
    uint32_t kind;
    int32_t worker;
    int32_t pid;
    int32_t value;
    int32_t unasked;  /* EXITED: before the guardian sent any signal to the worker */
    uint64_t time_ns; /* CLOCK_MONOTONIC, time of the guardian's observation */
    int64_t max_rss_kib, took_us;
    char text[GUARDIAN_TEXT_SIZE]; /* ZYGOTE: else empty */
};

/* What the guardians of a job have in common; there is more than one where one is killed. */
struct guardian_job {
    uint32_t
        group_delay_ms; /* longest time between GUARDIAN_SIGNAL to a worker and to its process group; 0: at once */
    uint32_t grace_ms;               /* after GUARDIAN_RELEASE, between SIGTERM and SIGKILL */
    const struct logs *logs;         /* folders to remove in place of a killed crun; NULL: none */
    const struct named_file *socket; /* the same */
    int cgroup; /* folder in which the guardian makes a cgroup for the workers; -1: none */
    struct job_cgroup_shared *shared; /* the same: see job_cgroup_os.h */
};

/*
 * Forks a guardian that waits for orders to start n_workers, generation after generation; it launches the zygote (NULL: none) at
 * once. If crun is killed, the guardian removes empty folders of the logs, and crun's socket. Returns 0 with the guardian's
 * process id and crun's end of the link to it (non-blocking, close-on-exec), or -errno. The caller may
 * close the zygote's descriptors afterwards.
 */
int spawn_guardian(size_t n_workers, const struct worker_start *zygote, const struct guardian_job *job,
                   pid_t *ret_pid, int *ret_link);

/* For main(): the strings of argv. Guardians overwrite the strings in a copy of crun's memory. */
void guardian_set_command_line(char **argv);
