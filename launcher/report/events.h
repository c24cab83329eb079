#pragma once

/*
 * The events of a job that --event-log and --event-log-handler=console write, and their fields.
 * Pure: events_json.c and events_torch_json.c make lines of them, events_os.c decides when and where to.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "rendezvous/session/session_message.h"

enum event_kind {
    EVENT_START,   /* a generation begins */
    EVENT_READY,   /* all its workers have executed their program */
    EVENT_EXIT,    /* a worker ended */
    EVENT_FAILURE, /* the generation failed; why */
    EVENT_PEER,    /* another node ended the generation, or the job */
    EVENT_STOP,    /* crun was asked to stop by a signal */
    EVENT_RESTART, /* nothing is left of the generation, the next one follows */
    EVENT_HANG,    /* no rank makes progress */
    EVENT_STACKS,  /* stacks were taken for another reason */
    EVENT_STALL,   /* some ranks wait unusually long for others */
    EVENT_SLOW,    /* the other ranks wait for a rank most of the time */
    EVENT_MARK,    /* a worker printed a line that --on-line has a rule for */
    EVENT_WARM,    /* the process that forks workers has imported their modules */
    EVENT_END,     /* the job is over */
    EVENT_KIND_COUNT
};

/* What does not change while a job runs, except its rank assignment. */
struct event_job {
    const char *run_id, *host, *role, *rdzv_backend;
    const char *worker_run_id; /* as workers and torchrun have it */
    const char *run;           /* of this crun alone, also where the name of the job is used again */
    const char *program;       /* script, module or command, as the user gave it, without its folder */
    const char *entry_point;   /* the file that is executed, as torchrun has it: Python for a script */
    int n_workers, max_restarts;
    pid_t crun;
    struct rank_assignment place;
};

/* How a worker ended. code: its exit code, or the negative number of the signal. */
struct event_ending {
    int local_rank;
    pid_t pid;
    int code;
    bool core_dumped, stopped;
    int64_t max_rss_kib;
    uint64_t ran_ns;
};

/* Another node, and what it has to do with the end of a generation. */
struct event_peer {
    const char *host; /* "": not known */
    int group_rank;   /* -1: it had none */
    int rank;         /* of its worker that failed; -1: none */
};

/* What is imported before workers are forked. */
struct event_warm {
    int n_modules;
    int64_t memory_kib; /* that the workers share */
    int64_t took_us;
};

struct event_stall {
    uint32_t n_waiting, waits_ms; /* ranks that wait unusually long, and the longest wait */
    char activity[16];            /* of the awaited rank, a word */
    uint64_t bytes_per_s;         /* the same; 0: no transfer */
};

/* Where the ranks are. */
struct event_hang {
    bool is_hang;
    int rank; /* that stands out; -1: none */
    uint64_t silence_ns;
    const char *groups;              /* lines; or NULL */
    const char *folder;              /* of the files with the stacks; or NULL */
    const struct event_stall *stall; /* STALL; or NULL */
};

/* A line of a worker, and the rule that it matches. */
struct event_mark {
    int local_rank;
    const char *action, *rule, *line;
};

struct event {
    enum event_kind kind;
    int64_t time_ns;       /* wall clock, since 1970 */
    uint64_t monotonic_ns; /* the same moment */
    uint32_t generation;
    int restarts;                      /* charged so far */
    const struct event_ending *ending; /* of the worker; NULL: none is concerned */
    const char *
        cause; /* FAILURE: "worker", "exec", "guardian", "rejoin" or "start"; PEER: "lost", "left", "joined", "worker" or
                "closed"; END: "succeeded", "failed" or "stopped" */
    const char *reason;            /* in words, or NULL */
    const struct event_peer *peer; /* PEER */
    int number;                    /* STOP: the signal; END: the exit code; FAILURE of an exec: errno */
    pid_t sender;                  /* STOP: 0 when unknown */
    const pid_t *pids;             /* READY: of all workers */
    uint64_t took_ns;              /* READY: since the start; END: since the first start */
    int left;                      /* RESTART: restarts left after it */
    const struct event_warm *warm; /* WARM */
    const struct event_hang *hang; /* HANG, STACKS, STALL, SLOW */
    const struct event_mark *mark; /* MARK */
};

struct cJSON;

/* EVENT_KIND_COUNT: no kind has the name. */
enum event_kind events_kind(const char *name);

/* Text of any origin: what is not UTF-8 in it becomes "?". */
void events_add_text(struct cJSON *object, const char *name, const char *text);

/* Lines as an array of texts, without their indentation; NULL: an empty one. */
void events_add_lines(struct cJSON *object, const char *name, const char *lines);

/* The object as a line, malloc'ed; NULL without memory. Frees the object. */
char *events_print(struct cJSON *line);

/* One line of --event-log, malloc'ed and with its newline; NULL without memory. */
char *events_json_line(const struct event_job *job, const struct event *event);

/* torchrun's states of agents and workers. */
struct event_torch {
    const char *state;
    const struct event_ending *worker; /* NULL: the agent itself */
    bool knows_ending;                 /* the worker failed: its exit code and pid are written */
    bool is_first;                     /* before the first rendezvous has ended: no ranks are assigned yet */
    const char *raw_error;             /* JSON text, or NULL */
    int restarts;
    int64_t run_s;
    double duration_ms; /* negative: none */
};

/* The same event as torchrun's console handler prints it. */
char *events_torch_line(const struct event_job *job, const struct event_torch *event);
