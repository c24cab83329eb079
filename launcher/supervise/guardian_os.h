#pragma once

/*
 * The guardian: a small process between crun and the workers, their parent and the subreaper of every process that they
 * start ("shepherd" or "slurmstepd" elsewhere). It stays for all generations of the job. It exists so that no process of
 * a job outlives crun, however crun ends.
 *
 * crun and the guardian are connected by a SOCK_SEQPACKET socket, the link: orders one way, reports the other. The
 * guardian decides nothing; it starts, signals, reaps and reports. When the link ends (crun has ended), it kills all its
 * children and sends crun's death notice.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct death_notice;
struct job_cgroup;
struct logs;
struct named_file;
struct ordered_start;
struct worker_start;

enum guardian_order_kind {
    GUARDIAN_SIGNAL = 1,  /* to the process group of every worker, and to every orphan; see group_delay_ms */
    GUARDIAN_PASS_SIGNAL, /* to every worker process alone; it does not count as a request to end */
    GUARDIAN_FREEZE, /* SIGSTOP or SIGCONT to the process group of every worker, and to every orphan; as above */
    GUARDIAN_KILL,        /* SIGKILL to every process, again and again until none is left */
    GUARDIAN_KILL_WORKER, /* SIGKILL to that worker's process group */
    GUARDIAN_START, /* start a process for `worker`, the first one or after its end (guardian_orders_os.h); what an earlier one
                       of the same generation left in its session is killed */
    GUARDIAN_RELEASE, /* crun is being ended by a signal: when the link ends, SIGTERM and the grace come before
                             SIGKILL, so that workers can save their state */
    GUARDIAN_BEGIN,   /* a generation begins, with GUARDIAN_START for each worker */
    GUARDIAN_LEASE,   /* as GUARDIAN_KILL, at time_ns by CLOCK_BOOTTIME; 0: not; replaces an earlier one */
    GUARDIAN_END,     /* the job has ended: end */
};

struct guardian_order {
    uint32_t kind;
    int32_t signal;
    int32_t worker;
    int32_t error;    /* set by the receiver: errno when not all of it arrived */
    uint64_t time_ns; /* GUARDIAN_LEASE */
};

enum guardian_report_kind {
    GUARDIAN_STARTED = 1, /* worker: has executed its program, as pid */
    GUARDIAN_EXEC_FAILED, /* worker: could not; value: errno. No further worker is started */
    GUARDIAN_EXITED,      /* worker: ended; value: its wait status. In the kernel's order */
    GUARDIAN_ORPHANS,     /* all workers have ended; value: processes they left behind */
    GUARDIAN_EMPTY, /* no process of the generation is left; value 1: the guardian ends, as it cannot list those that may be left */
    GUARDIAN_SIGNALLED, /* worker: it, or a process of its session (pid), sent signal `value` to its parent */
    GUARDIAN_ZYGOTE, /* a report of the zygote (zygote_os.h): value: its kind; text; the members named there */
};

enum { GUARDIAN_TEXT_SIZE = 200, GUARDIAN_UNSENT_MORE = 32 };

struct guardian_report {
    uint32_t kind;
    int32_t worker;
    int32_t pid;
    int32_t value;
    int32_t unasked;  /* EXITED: by itself, before any signal was sent to it */
    uint64_t time_ns; /* CLOCK_MONOTONIC, when the guardian saw it */
    int64_t max_rss_kib, user_us, system_us;
    char text[GUARDIAN_TEXT_SIZE]; /* ZYGOTE: else empty */
};

/* What the guardian knows of a worker; allocated by crun, as the guardian itself allocates nothing. */
struct guardian_worker {
    pid_t pid;                   /* 0: not started, or reaped */
    int pidfd;                   /* -1: none, or the kernel has none */
    bool asked;                  /* the guardian has sent it a signal */
    bool is_traced_zombie;       /* it has ended, and cannot be reaped before its tracer has waited for it */
    pid_t ended;                 /* the one before, and its session; 0: none */
    bool sweep;                  /* what is left of that session is being killed */
    int handshake;               /* of a start by the zygote that is under way; 0: none */
    bool to_kill;                /* as soon as that start has ended */
    struct ordered_start *start; /* its bytes and descriptors */
};

struct guardian_setup {
    struct guardian_worker *state;
    size_t n_workers;
    struct guardian_report *unsent; /* room for reports that crun does not take yet */
    size_t n_unsent_max;            /* two for each worker and GUARDIAN_UNSENT_MORE */
    int link;
    int *
        keep; /* descriptors of the zygote, the link and the folder of cgroups, ascending; all others above 2 are closed */
    size_t n_keep;
    pid_t crun;
    const struct worker_start *zygote; /* NULL: none, workers start by exec */
    struct job_cgroup *cgroup;         /* of the workers */
    uint32_t
        group_delay_ms; /* longest time between GUARDIAN_SIGNAL to a worker and to its process group; 0: at once */
    /* For the case that crun ends first: */
    uint32_t grace_ms; /* after GUARDIAN_RELEASE, between SIGTERM and SIGKILL */
    const struct death_notice
        *death_notice;               /* until GUARDIAN_BEGIN brings another; NULL: there is no rendezvous */
    const struct logs *logs;         /* folders that crun would have removed; NULL: none */
    const struct named_file *socket; /* the same; NULL: none */
};

/* For main(): the strings of argv, which guardians overwrite in their copy of the memory. */
void guardian_set_command_line(char **argv);

/* The main function of the guardian, in the forked process. Ends in _exit(). */
_Noreturn void guardian_run(const struct guardian_setup *setup);
