#pragma once

/*
 * The guardian: a small process between crun and the workers of a generation, their parent and the subreaper of
 * everything they start. It stays with those that are taken to the next generation. It exists so that nothing of a job outlives crun, however crun ends.
 *
 * crun speaks with it over a SOCK_SEQPACKET socket: orders one way, reports the other. It decides nothing;
 * it starts, signals, waits and tells. When the socket ends (crun is gone), it kills all it has and says crun's last word.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct death_notice;
struct logs;
struct spawn_worker;

enum guardian_order_kind {
    GUARDIAN_SIGNAL = 1,  /* to the process group of every worker, and to whatever was left behind */
    GUARDIAN_KILL,        /* SIGKILL to everything, again and again until nothing is left */
    GUARDIAN_KILL_WORKER, /* SIGKILL to that worker's process group */
    GUARDIAN_START, /* worker, which has ended: start a new one in its place (replacement_os.h); what the one
                            before left in its session is killed */
};

struct guardian_order {
    uint32_t kind;
    int32_t signal;
    int32_t worker;
    uint32_t descriptors; /* GUARDIAN_START: which came with it */
    int32_t error;        /* the receiver's: errno, what came is not all there */
};

enum guardian_report_kind {
    GUARDIAN_STARTED = 1, /* worker: has executed its program, as pid */
    GUARDIAN_EXEC_FAILED, /* worker: could not; value: errno. No further worker is started */
    GUARDIAN_EXITED,      /* worker: ended; value: its wait status. In the kernel's order */
    GUARDIAN_LEFT,        /* all workers have ended; value: processes they left behind */
    GUARDIAN_EMPTY,       /* nothing is left; the guardian ends */
};

struct guardian_report {
    uint32_t kind;
    int32_t worker;
    int32_t pid;
    int32_t value;
    int32_t unasked;  /* EXITED: by itself, before any signal was sent to it */
    uint64_t time_ns; /* CLOCK_MONOTONIC, when the guardian saw it */
    int64_t max_rss_kib, user_us, system_us;
};

/* What the guardian keeps of a worker; allocated by crun, as the guardian itself allocates nothing. */
struct guardian_worker {
    pid_t pid;   /* 0: not started, or waited for */
    int pidfd;   /* -1: none, or the kernel has none */
    bool asked;  /* the guardian has sent it a signal */
    pid_t ended; /* the one before, and its session; 0: none */
    bool sweep;  /* what is left of that session is being killed */
};

struct guardian_setup {
    const struct spawn_worker *workers;
    struct guardian_worker *state;
    size_t n_workers;
    int link;
    int *keep; /* descriptors the workers need, ascending; all others above 2 but link are closed */
    size_t n_keep;
    pid_t crun;
    /* For when crun ends before us: */
    const struct death_notice *death_notice; /* NULL: nobody is to be told */
    const struct logs *logs;                 /* what crun would have removed; NULL: nothing */
};

/* The guardian's life, in the forked process. Ends in _exit(). */
_Noreturn void guardian_run(const struct guardian_setup *setup);
