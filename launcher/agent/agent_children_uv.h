#pragma once

/*
 * Children of crun: the guardian, processes inherited from before the exec, and the processes of a lost guardian, since crun is a
 * subreaper. Beside the process tree, the cgroup of the workers.
 */

#include <stdbool.h>

struct agent_children;
struct agent_health;
struct agent_host;
struct agent_observer;
struct guardian_job;

/* Children of crun at the time of this call are not the job's. guardians: gets the cgroup. health: the check is a child, too. */
struct agent_children *agent_children_create(struct agent_observer *observer, const struct agent_host *host,
                                             struct guardian_job *guardians, struct agent_health *health);

/* Reaps the children that have ended. False: crun has no child. */
bool agent_children_reap(struct agent_children *c);

/* Finds out whether a cgroup can be made for each generation, once. The calls wait for no disk. */
void agent_children_seek_cgroup(struct agent_children *c);

/* The guardian has ended. Spares the keeper (job_cgroup_os.h), now a child of crun, in the sweep. */
void agent_children_spare_keeper(struct agent_children *c);

/* Kills the processes of a lost guardian, round after round; GROUP_EMPTY follows. */
void agent_children_sweep(struct agent_children *c);

/* Prints the names of processes that SIGKILL does not end. */
void agent_children_print_stuck(const struct agent_children *c);
