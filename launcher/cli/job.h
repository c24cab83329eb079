#pragma once

/*
 * What a command line means: struct options, checked and turned into the settings of one job on one node.
 *
 * Pure. Facts about the machine (its CPUs and GPUs, a random id) come in through struct job_machine. Every refusal is one
 * sentence; what is accepted but has no effect here is reported in a warning.
 */

#include <stdbool.h>
#include <stdint.h>

#include "launcher/cli/numa.h"
#include "launcher/cli/options.h"
#include "launcher/cli/slurm.h"
#include "launcher/util/strlist.h"
#include "proto/certificate_paths.h"
#include "rendezvous/session/session_message.h"

enum {
    JOB_WORKERS_MAX = 4096, /* on one node; a bound, as a typing mistake must not exhaust the process table */
    JOB_ID_SIZE = 40,       /* a UUID in text and its NUL */
};

enum job_program {
    JOB_PROGRAM_FILE,       /* a path: itself when ELF or "#!", else a Python script */
    JOB_PROGRAM_MODULE,     /* python -m */
    JOB_PROGRAM_EXECUTABLE, /* --no-python: a command found on PATH */
    JOB_PROGRAM_RUN_PATH,   /* runpy.run_path inside Python */
    JOB_PROGRAM_COUNT
};

/* Whether nodes have to prove a secret; in the order of the choices of --security. */
enum job_security {
    JOB_SECURITY_OPEN,   /* never */
    JOB_SECURITY_PREFER, /* where there is one */
    JOB_SECURITY_REQUIRE /* several nodes do not start without */
};

enum { JOB_STDOUT = 1, JOB_STDERR = 2 };

/* How this node finds the others. */
enum job_meeting {
    JOB_ALONE,  /* a job of one node */
    JOB_STATIC, /* every node is given its number; they meet in a store that node 0 serves */
    JOB_ROUNDS, /* the rendezvous assigns ranks to the nodes */
    JOB_MEETING_COUNT
};

/* Whether this node serves the rendezvous. */
enum job_hosting {
    JOB_HOSTS_IF_LOCAL, /* if the endpoint's address is its own and the port is free */
    JOB_HOSTS,
    JOB_HOSTS_NOT,
};

/* Facts about the machine. A count of 0 GPUs also means that they cannot be counted; GPUs are of NVIDIA or AMD, XPUs of Intel. */
struct job_machine {
    int (*count_cpus)(void *data);
    int (*count_gpus)(void *data);
    int (*count_xpus)(void *data);
    void *data;
    /* An address of this machine in a network, as local_address_in(); NULL: its addresses are not known. */
    int (*find_address)(const char *network, char *ret, size_t size);
    const char *slurm_conf; /* Slurm's configuration; NULL outside Slurm or if unreadable */
    const char *random_id;  /* a fresh UUID for jobs that have no name of their own */
};

/* What follows the report on a hang. */
enum job_hang_action { JOB_HANG_REPORT, JOB_HANG_RESTART, JOB_HANG_STOP }; /* in the order of the choices */

struct line_rules;

enum { JOB_ENDPOINTS_MAX = 8 };

/* With job.output_fd: value of a queued signal that is to stop the whole job, not this node alone. */
enum { JOB_SIGNAL_OF_ALL = 0x63727573 };

struct job_endpoint {
    char *host;
    uint16_t port;
};

struct job {
    int n_workers;
    const char *role;
    char run_id[JOB_ID_SIZE]; /* used when one of these points here */
    const char *run_id_text;  /* the name of the job */
    const char
        *worker_run_id; /* TORCHELASTIC_RUN_ID and the folder of logs: ALONE a random one, as in torchrun */
    enum job_meeting meeting;
    int min_nodes, max_nodes;
    int node_rank;              /* ROUNDS: the number it asks for, -1: any */
    char *master_addr;          /* ALONE, STATIC: what workers get; the store listens there */
    uint16_t master_port;       /* ALONE: 0 is a free one, new for each generation */
    bool worker_has_store;      /* ALONE: the first worker opens it, crun only keeps its port free */
    uint32_t static_timeout_ms; /* STATIC: for all nodes to arrive */
    struct job_endpoint endpoints
        [JOB_ENDPOINTS_MAX]; /* ROUNDS; those behind the first are other daemons with the same state */
    size_t n_endpoints;
    int agent_fd;           /* ROUNDS: socket of the program that is the agent; -1: crun is */
    const char *local_addr; /* where other nodes reach this one; NULL: not given */
    char *found_addr;       /* text of local_addr, found in a network; NULL: local_addr was given as it is */
    enum job_hosting hosting;
    struct session_params params;          /* ROUNDS */
    uint32_t cutoff_ms;                    /* ROUNDS: how long a lost rendezvous is redialled; 0: not given */
    const char *secret_file;               /* NULL: not given */
    struct certificate_paths certificates; /* ROUNDS: all three, or none */
    enum job_security security;
    bool may_use_munge;                   /* ROUNDS: this node is one of several of a step of Slurm */
    char munge_socket[MUNGE_SOCKET_SIZE]; /* "": munge's own */
    bool seals;                           /* --seal */
    bool local_store; /* ROUNDS: workers use a store on their own node, which forwards to node 0's */
    int max_restarts;
    int max_restarts_without_progress; /* in a row; 0: any number */
    int shutdown_timeout_s;
    bool worker_first; /* a signal that ends workers goes to their groups later */
    bool replace;      /* restart the failed workers alone where the others can stay */
    int replace_timeout_s;
    bool warm;           /* workers are forked by a process that has imported what they import */
    int restart_pause_s; /* longest pause between restarts of short generations; 0: none */
    int hang_timeout_s;  /* without progress; 0: not watched */
    enum job_hang_action hang_action;
    uint64_t signals; /* bit s-1: signal s is passed on and ends the job */
    bool debug;
    const char *debug_file; /* NULL: standard error */
    const char *signals_text;
    bool exit_code_of_worker;
    int no_requeue_code;      /* 0: not given */
    const char *health_check; /* for a shell, or "builtin"; NULL: none */
    int health_check_timeout_s;
    enum job_program program;
    const char *program_name;
    char *const *program_args;
    bool virtual_local_rank;
    enum numa_mode numa;
    const char *rdzv_backend; /* "c10d" for a job that has none of its own */
    const char *event_log;    /* file, or NULL */
    const char *metrics_addr; /* NULL: no metrics */
    bool has_timestamps;      /* of lines of crun, from the start of the job on */
    bool event_console;
    const char *log_dir;     /* NULL: a temporary one; "/dev/null": none at all */
    const char *line_prefix; /* template for the lines of -t; NULL: torchrun's */
    bool
        is_admitted; /* CRUN_ADMITTED: by the channel to the rendezvous, of which the secret is the key of workers */
    int output_fd;                 /* of CRUN_OUTPUT_FD: socket that takes the output of workers; 0: none */
    uint8_t *redirects, *tees;     /* for each worker, JOB_STDOUT | JOB_STDERR */
    uint8_t *listed;               /* for each worker, whether its output is shown; NULL: all are */
    bool fold_output;              /* equal lines of workers are shown as one */
    struct line_rules *line_rules; /* NULL: none */
    struct strlist filters[2];     /* of tee'd stdout and stderr */
};

#define JOB_ERROR_SIZE 1024

/*
 * Fills *job, which borrows from options and environment. 0, or 1 with a sentence in error (exit code 1).
 * *ret_warnings: lines to show, each ending in a newline; malloc'ed, NULL when there are none; set on
 * success only.
 */
int job_init(struct job *job, const struct options *options, char *const *environment,
             const struct job_machine *machine, char **ret_warnings, char error[JOB_ERROR_SIZE]);
void job_finish(struct job *job);

/*
 * Parses -r and -t: one digit for all, or RANK:DIGIT,...; fills map[n_workers]. False when malformed.
 * Ranks beyond n_workers are ignored, the last entry of a rank counts.
 */
bool job_parse_streams(const char *text, uint8_t *map, int n_workers);

/* Whether the rendezvous is the front's that started this agent (crun --hosts), behind the far end's port. */
bool job_has_front_rendezvous(const struct job *job);

/* Whether any output of any worker goes into files (-r, -t). */
bool job_has_logs(const struct job *job);

/* Whether some of it is in files only (-r without -t). */
bool job_hides_output(const struct job *job);
