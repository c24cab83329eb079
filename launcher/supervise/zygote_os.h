#pragma once

/*
 * The zygote of --warm, as its guardian sees it: an interpreter that has imported what the workers import, and forks
 * them (python/crun_launch/zygote.py). One for each guardian, which outlives generations then.
 *
 * For each start the guardian makes a handshake socket and sends it to the zygote with the bytes (worker_start.h) and descriptors of the worker. The forked
 * worker becomes a child of the guardian, sends its process id through that socket, and waits for one byte: only then is it a
 * worker. When the socket ends first (the zygote has ended, or cannot fork), the worker is started by exec.
 *
 * When the zygote ends by itself, the guardian launches another one. A module whose import has ended it (SIGSEGV in
 * C code, exit(), no end within ZYGOTE_PATIENCE_MS) is dropped by the next one, as any that cannot be shared. SIGKILL from outside, as
 * from the kernel without memory, drops no module.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ordered_start;
struct spawn_cgroup;
struct worker_start;

/* ---- records, in the order of bytes of the machine; zygote.py has the same ---- */

enum zygote_order_kind {
    ZYGOTE_START =
        1, /* descriptors: the bytes of the start, the handshake socket, 0 to 2 of the worker, those that its head names above */
    ZYGOTE_END, /* save the list of modules and end */
};

struct zygote_order {
    uint32_t kind;
    uint32_t worker;
    int32_t guardian; /* its process id: the parent that the worker must have */
    int32_t crun;     /* its process id: its tools may trace the worker */
};

enum zygote_report_kind {
    ZYGOTE_READY = 1, /* value: modules; memory_kib, took_us */
    ZYGOTE_DROPPED,   /* text: a module and why it is not imported beforehand */
    ZYGOTE_REFUSED,   /* text: why nothing can be forked; the zygote ends */
    ZYGOTE_LOADING, /* it imports; at most once a second. value 0: starts wait for the end of that, 1: they do not */
    ZYGOTE_NOT_FORKED, /* of the guardian to crun: a worker was started by exec instead; text: the reason, or empty */
    ZYGOTE_ENDED, /* of the guardian to crun: the zygote has ended, and another one is launched; text: the reason */
    ZYGOTE_REMARK, /* text: for the user */
};

enum { ZYGOTE_TEXT_SIZE = 200 };

struct zygote_report {
    uint32_t kind;
    int32_t value;
    int64_t memory_kib; /* of its own, which the workers share */
    int64_t took_us;
    char text[ZYGOTE_TEXT_SIZE];
};

/* ---- for the guardian, which allocates nothing ---- */

enum {
    ZYGOTE_PATIENCE_MS = 120000, /* for one module; then it is killed */
    ZYGOTE_RENEWALS_MAX = 3,     /* in one generation; then workers start by exec until the next one */
};

struct zygote {
    pid_t pid; /* 0: there is none, or it has been reaped */
    int link;  /* -1: it takes no orders */
    bool is_loading;
    bool
        is_awaited; /* starts wait while it is loading: the imports are those of the list that the job began with */
    bool is_renewed;           /* it is not the first one */
    bool has_reported;         /* since its launch: what its predecessor died of is in the file */
    bool is_stuck;             /* it was killed because an import did not end */
    int n_renewals;            /* in this generation */
    uint64_t loading_since_ns; /* its last record */
};

/* Executes it. start: as the first worker, with the environment of zygote_environment(), the source as SPAWN_STATE_FD, and as
 * SPAWN_IMPORT_FD a memory file for the name of the module whose import is under way. Cgroup as for spawn_worker(): workers that
 * it forks are in the same. 0 or -errno. */
int zygote_launch(struct zygote *z, const struct worker_start *start, struct spawn_cgroup *cgroup);

/* It has been reaped with that status. Where the module under import is not the cause, its name is removed: the next zygote drops
 * the module that it finds there. */
void zygote_reaped(struct zygote *z, const struct worker_start *start, int status);

/* Sends the order to fork a worker. 0 with the guardian's end of the handshake socket, or -errno: -EBUSY when the zygote imports and
 * the start would wait longer than one by exec. */
int zygote_start_worker(struct zygote *z, int worker, const struct ordered_start *r, pid_t crun,
                        int *ret_handshake);

/* Receives a report without waiting. False when there is none; then the link may have ended (link is -1). */
bool zygote_receive(struct zygote *z, struct zygote_report *ret);

/* Asks it to end. */
void zygote_end(struct zygote *z);

/* ---- for crun ---- */

/* The zygote's source in a memory file, or -errno. */
int zygote_open_source(void);

/* An empty memory file for the name of the module under import, or -errno. */
int zygote_open_import(void);

struct strlist;

/* Appends the environment of a zygote: that of a worker, with the source (its descriptor has the number SPAWN_STATE_FD) first in
 * PYTHONPATH. varies: one more variable that differs between workers, or NULL. Check out->failed. */
void zygote_environment(char *const *of_worker, const char *varies, struct strlist *out);

/* Why this command cannot be warm, or NULL: it is no script of an interpreter that is called python, or there is no /proc. */
const char *zygote_refuses(const char *file, const char *script);
