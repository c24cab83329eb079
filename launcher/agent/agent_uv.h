#pragma once

/*
 * The agent: runs one job on this node from its first worker to its exit code. A libuv loop around the group
 * machine (worker_group.h): turns signals, reports of the guardian and timers into events, and carries out the
 * resulting actions. The agent decides nothing.
 */

struct job;
struct job_keys;
struct numa_cpus;
struct plan_command;

struct agent_config {
    const struct job *job;
    const struct plan_command *command;
    const char *file;                 /* path of the program */
    char *const *environment;         /* of crun */
    const struct numa_cpus *bindings; /* where each worker runs, or NULL: anywhere */
    struct job_keys *keys;            /* NULL: the sessions with the rendezvous are in the clear */
    int signal_fd; /* signalfd of SIGCHLD and of the signals that stop the job or are passed on; they are blocked */
};

/* Returns crun's exit code. Failures are reported on stderr. */
int agent_run(const struct agent_config *config);
