#pragma once

/*
 * The report on a generation that failed: at most a dozen lines, in the order in which things happened, then, when the job is
 * over, torchrun's summary table with torchrun's field names.
 * Pure: facts in, text out.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct worker_group;

/* A worker that ended badly. */
struct report_failure {
    int local_rank, rank, pid;
    int exit_code; /* negative: the signal that ended it */
    bool core_dumped;
    bool stopped;           /* crun had signalled it before it ended */
    uint64_t ended_ns;      /* monotonic */
    int64_t time_s;         /* wall clock: of its error file, or of its end */
    char time_text[32];     /* the same, local, as the table shows it */
    const char *error_file; /* NULL: it left none */
    char error_name[48];    /* of the error file where another process keeps the file */
    const char *message;    /* from the error file; NULL: it left none */
    char *text;             /* the message, where the collector of failures frees it; or NULL */
    int64_t max_rss_kib;
};

struct report {
    const struct worker_group *group;
    int rank_base;
    const struct report_failure *failures; /* in the order in which the workers ended */
    size_t n_failures;
    int root;          /* index of the root cause; -1 when there are no failures */
    const char *title; /* script, module or command */
    const char *host;
    const char *program;      /* what could not be executed, for GROUP_CAUSE_EXEC */
    const char *python;       /* the Python of the workers, where an import may be what failed; else NULL */
    const char *interpreter;  /* the one its "#!" line names, when that is what is missing; else NULL */
    const char *log_dir;      /* files that are kept are below; NULL: none */
    const char *last_lines;   /* of the root cause's stderr, where the console does not show it; NULL: none */
    long oom_kills;           /* the kernel's count for this cgroup since the start; -1 when unknown */
    const char *core_pattern; /* what the kernel does with core dumps; NULL or "": unknown */
    const char *sender; /* "process 7 (bash)": sender of the signal that stopped crun; NULL or "": unknown */
    const char *final_why; /* why group->is_final; NULL or "": a rule of --on-line */
    bool gave_up;          /* something is left that cannot be killed */
};

/*
 * The root cause: the smallest time_s among those that crun had not signalled (or that
 * left an error file), the first to end on ties. -1 when n_failures is 0.
 */
int report_find_root(const struct report_failure *failures, size_t n_failures);

/* The lines, each "crun: ...\n", and the table when group->will_restart is false; of one node of several the
 * lines alone, as the table is about all of them (job_result.h). Malloc'ed or NULL. */
char *report_compose(const struct report *report);

struct strbuf;

/* torchrun's block on a failure, without the newline of its last line. error_file NULL: no such line. */
void report_add_failure(struct strbuf *out, size_t number, const char *host, const struct report_failure *f,
                        const char *error_file);

/* "exit code 7", "signal 11 (SIGSEGV), core dumped". */
void report_describe_end(const struct report_failure *f, char *out, size_t out_size);
