#pragma once

/*
 * The guardian's side of the zygote of --warm: an interpreter that has imported the modules of the workers, and forks
 * the workers (python/crun_launch/zygote.py). The guardian of a job has a single zygote for all generations.
 *
 * For each start the guardian makes a handshake socket and sends the socket to the zygote, with the bytes (worker_start.h) and
 * descriptors of the worker. The forked process becomes a child of the guardian, sends its process id through the socket, and
 * waits for a byte: with the byte the process is a worker. When the socket ends first (the zygote has ended, or cannot fork),
 * the worker is started by exec.
 *
 * When the zygote ends by itself, the guardian launches another zygote. The next zygote drops a module whose import has ended
 * its predecessor (SIGSEGV in C code, exit(), no end within ZYGOTE_PATIENCE_MS), as any module that cannot be shared. SIGKILL
 * from outside, as from the kernel without memory, drops no module.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct job_cgroup;
struct ordered_start;

struct worker_start;

/* ---- records, in the order of bytes of the machine; zygote.py has the same ---- */

enum zygote_order_kind {
    ZYGOTE_START =
        1, /* descriptors: the bytes of the start, the handshake socket, 0 to 2 of the worker, the others named by the head */
    ZYGOTE_END, /* save the list of modules and end */
};

struct zygote_order {
    uint32_t kind;
    uint32_t worker;
    int32_t guardian; /* process id of the guardian, the worker's parent */
    int32_t crun;     /* process id of crun: crun's tools may trace the worker */
};

enum zygote_report_kind {
    ZYGOTE_READY = 1, /* value: modules; memory_kib, took_us */
    ZYGOTE_DROPPED,   /* text: a module not imported beforehand, and the reason */
    ZYGOTE_REFUSED,   /* text: reason why the zygote cannot fork; the zygote ends */
    ZYGOTE_LOADING, /* amid imports; at most once a second. value 0: starts wait for the end of the imports, 1: starts do not */
    ZYGOTE_NOT_FORKED, /* of the guardian to crun: a worker was started by exec instead; text: the reason, or empty */
    ZYGOTE_ENDED,  /* of the guardian to crun: the zygote has ended, another is launched; text: the reason */
    ZYGOTE_REMARK, /* text: for the user */
};

enum { ZYGOTE_TEXT_SIZE = 200 };

struct zygote_report {
    uint32_t kind;
    int32_t value;
    int64_t memory_kib; /* memory of the zygote, shared with the workers */
    int64_t took_us;
    char text[ZYGOTE_TEXT_SIZE];
};

/* ---- for the guardian, which allocates nothing ---- */

enum {
    ZYGOTE_PATIENCE_MS = 120000, /* for a module; then the zygote is killed */
    ZYGOTE_RENEWALS_MAX = 3,     /* in a generation; then workers start by exec until the next generation */
};

struct zygote {
    pid_t pid; /* 0: no zygote, or reaped */
    int link;  /* -1: no orders are taken */
    bool is_loading;
    bool is_awaited;           /* starts wait while loading: the imports come from the job's first list */
    bool is_renewed;           /* not the job's first zygote */
    bool has_reported;         /* since the launch: the predecessor's fatal module is in the file */
    bool is_stuck;             /* killed because an import did not end */
    int n_renewals;            /* in the generation */
    uint64_t loading_since_ns; /* time of the last record */
};

/* Executes the zygote. start: as the first worker, with the environment of zygote_environment(), the source as SPAWN_STATE_FD, and as
 * SPAWN_IMPORT_FD a memory file for the name of the module whose import is under way. Cgroup as for spawn_worker(): forked
 * workers are in the same cgroup. 0 or -errno. */
int zygote_launch(struct zygote *z, const struct worker_start *start, struct job_cgroup *cgroup);

/* The zygote was reaped with a status. When the module under import is not the cause, the module's name is removed: the next
 * zygote drops the module named in the file. */
void zygote_reaped(struct zygote *z, const struct worker_start *start, int status);

/* Sends the order to fork a worker. 0 with the guardian's end of the handshake socket, or -errno: -EBUSY when the zygote imports and
 * the start would wait longer than a start by exec. */
int zygote_start_worker(struct zygote *z, int worker, const struct ordered_start *r, pid_t crun,
                        int *ret_handshake);

/* Receives a report without waiting. False: no report; the link may have ended (link is -1). */
bool zygote_receive(struct zygote *z, struct zygote_report *ret);

/* Asks the zygote to end. */
void zygote_end(struct zygote *z);

/* ---- for crun ---- */

/* The zygote's source in a memory file, or -errno. */
int zygote_open_source(void);

struct strlist;

/* Appends the environment of a zygote: the environment of a worker, with the source (descriptor SPAWN_STATE_FD) first in
 * PYTHONPATH. varies: a further variable that differs between workers, or NULL. Check out->failed. */
void zygote_environment(char *const *of_worker, const char *varies, struct strlist *out);

/* Reason why a command cannot be warm (no script of an interpreter called python, or no /proc); NULL: the command can be warm. */
const char *zygote_refuses(const char *file, const char *script);
