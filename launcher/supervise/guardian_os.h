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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/supervise/worker_start.h"

struct death_notice;
struct job_cgroup;
struct spawn_guardian_job;

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

enum { GUARDIAN_TEXT_SIZE = 200, GUARDIAN_UNSENT_MORE = 32 };

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

/* The contents of an order, with the ownership of the descriptors. */
struct ordered_start {
    struct worker_start start; /* valid until the next order is received, unless there is a memory file */
    int fd;                    /* memory file of the bytes; -1: none */
    void *bytes;               /* the mapped file, or NULL */
    size_t size;
    const struct death_notice *notice; /* GUARDIAN_BEGIN: until the next order is received; NULL: none */
};

/* State of a worker; allocated by crun, because the guardian allocates nothing. */
struct guardian_worker {
    pid_t pid;                  /* 0: not started, or reaped */
    int pidfd;                  /* -1: no pidfd, or not supported by the kernel */
    bool asked;                 /* the guardian has sent it a signal */
    bool is_traced_zombie;      /* ended, but cannot be reaped before the tracer has waited */
    pid_t ended;                /* pid and session of the process before; 0: none */
    bool sweep;                 /* processes left in session `ended` are being killed */
    int handshake;              /* of a start by the zygote, under way; 0: none */
    bool to_kill;               /* SIGKILL as soon as the start under way has ended */
    struct ordered_start start; /* bytes and descriptors of the start under way */
};

struct guardian_setup {
    struct guardian_worker *state;
    size_t n_workers;
    struct guardian_report *unsent; /* room for reports not yet taken by crun */
    size_t n_unsent_max;            /* two for each worker and GUARDIAN_UNSENT_MORE */
    int link;
    int *
        keep; /* descriptors of the zygote, the link and the folder of cgroups, ascending; all others above 2 are closed */
    size_t n_keep;
    pid_t crun;
    const struct worker_start *zygote; /* NULL: none, workers start by exec */
    struct job_cgroup *cgroup;         /* of the workers */
    const struct spawn_guardian_job *job;
};

/* For main(): the strings of argv. Guardians overwrite the strings in a copy of crun's memory. */
void guardian_set_command_line(char **argv);

/* The main function of the guardian, in the forked process. Ends in _exit(). */
_Noreturn void guardian_run(const struct guardian_setup *setup);
