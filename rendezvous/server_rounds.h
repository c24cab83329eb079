#pragma once

/*
 * How a server serves the rounds.
 */

/* The rounds (rounds.h) behind agent sessions. Zero stands for the default of each number. */
struct server_rounds {
    unsigned max_jobs;
    unsigned max_nodes;  /* of one job */
    unsigned max_agents; /* nodes of all jobs together */
    unsigned grace_ms;   /* for agents to return after a restart with state_dir */
    const char
        *state_dir; /* rounds_disk_uv.h; NULL: nothing is kept, and agents that return tell what they know */
    /* Receives one line (no newline) for everything that happens to a job; while it gathers, one a second.
     * At most a few dozen a second over all jobs, the rest is counted. NULL: nobody. */
    void (*log)(void *data, const char *line);
    /* The last node of the last job is gone: everybody was told how the job ended, or left, or is lost. From
     * within the loop; server_drain() and server_stop() may be called from it. NULL: nobody. */
    void (*empty)(void *data);
    void *data;
};
