#pragma once

/*
 * What crunctl shows of a job while it runs: its nodes and their workers. crun fills it and sends it as JSON
 * (job_status_json.h), crunctl adds what /proc, log files and the GPU driver have, and makes text of it (status_text.h,
 * top_text.h). Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JOB_STATUS_NAME_SIZE = 256,
    JOB_STATUS_WORD_SIZE = 24,
    JOB_STATUS_LINE_SIZE = 128,
    JOB_STATUS_ENDPOINT_SIZE = 300,
    JOB_STATUS_WORKERS_MAX = 65536,
    JOB_STATUS_GPUS_MAX = 16,
};

struct worker_status {
    int32_t rank, local_rank;         /* rank: -1 before ranks are assigned */
    int64_t pid;                      /* 0: not started */
    char state[JOB_STATUS_WORD_SIZE]; /* "starting", "running", "stopping", "succeeded" or "failed" */
    int32_t exit_code;                /* "failed": negative: the signal */
    int64_t last_step;                /* -1: the worker reports none */
    int64_t step_ms;                  /* since 1970: when it reported that; not in JSON */
    bool hang, straggler;
    bool awaited;                           /* in a stall that was reported (stall.h) */
    int32_t waits_percent, awaited_percent; /* of the last minute (slow.h); -1: not known */
    int64_t started_s;                      /* since 1970; 0: not started */
    char log[JOB_STATUS_NAME_SIZE];       /* the file of its standard output; "": none, or too long a name */
    char last_line[JOB_STATUS_LINE_SIZE]; /* of that file; "": none */
    /* From /proc; has_usage: it was there. */
    bool has_usage;
    int64_t cpu_ms, rss_kib;
    double steps_per_s;  /* -1: not known; else from two looks where the worker reports none */
    int32_t cpu_percent; /* from two looks; -1: not known */
};

struct gpu_status {
    int32_t index, percent; /* percent: of the time a kernel ran */
    int64_t used_mib, total_mib;
};

struct node_status {
    char host[JOB_STATUS_NAME_SIZE];
    int32_t group_rank;               /* -1: none yet */
    bool is_remote;                   /* /proc of this machine does not have its workers */
    char state[JOB_STATUS_WORD_SIZE]; /* of a remote one, as the rendezvous has it */
    int64_t taken_ms;   /* of a remote one: when its agent reported, by a clock of its own; 0: it has not */
    int64_t generation; /* of the workers; -1: not known */
    struct gpu_status gpus[JOB_STATUS_GPUS_MAX];
    size_t n_gpus;
    struct worker_status *workers;
    size_t n_workers;
};

struct job_status {
    char job[JOB_STATUS_NAME_SIZE], program[JOB_STATUS_NAME_SIZE];
    char state[JOB_STATUS_WORD_SIZE];          /* "waiting", "running", "stopping", "restarting" or "ended" */
    char rendezvous[JOB_STATUS_ENDPOINT_SIZE]; /* HOST:PORT; "": one node alone */
    char containment[JOB_STATUS_WORD_SIZE];    /* "cgroup" or "process tree"; "": not known */
    int64_t crun_pid;                          /* 0: the rendezvous was asked */
    int64_t generation;
    int32_t restarts, max_restarts;
    int32_t n_nodes;   /* of the generation; nodes[] has those that the answering agent knows */
    int64_t started_s; /* since 1970: start of crun; 0: not known */
    struct node_status *nodes;
    size_t n_nodes_known;
    const char *socket; /* of crunctl: where crun was asked; NULL: at a rendezvous */
};

/* Whether a job is one that was asked for: by its name, by how that begins, or by none (NULL: all). Where one has the whole name,
 * those of which it is the beginning were not meant. */
enum job_match { JOB_MATCH_NONE, JOB_MATCH_BEGINNING, JOB_MATCH_WHOLE };
enum job_match job_status_match(const char *name, const char *asked);

/* 0 or -ENOMEM: one more node with n_workers zeroed workers, or after a failure perhaps without workers. */
int job_status_add_node(struct job_status *s, const char *host, int32_t group_rank, size_t n_workers);

/* 0 or -ENOMEM: appends n zeroed workers to the last node. */
int job_status_add_workers(struct job_status *s, size_t n);

/* Moves nodes of the same job that s lacks to it; 0 or -ENOMEM. */
int job_status_take_nodes(struct job_status *s, struct job_status *from);

/* Fills in what follows from an earlier look at the same job, ms before. */
void job_status_compare(struct job_status *s, const struct job_status *before, int64_t ms);

/* Sets awaited_percent and straggler of the running workers in the newest generation. A worker without known waits (of an older
 * crun, or in its first 20 s) keeps its marks, and without memory all do. */
void job_status_mark_slow(struct job_status *s);

void job_status_finish(struct job_status *s);
