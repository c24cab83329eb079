#pragma once

/*
 * The children that are crun's own: the guardian, processes inherited from before the exec, and whatever a lost guardian leaves to
 * crun, which is a subreaper; and the cgroup that contains the workers beside that.
 */

#include <stdbool.h>

struct agent_children;
struct agent_health;
struct agent_host;
struct agent_observer;
struct spawn_guardian_job;

/* Children that are there now are not the job's. guardians: gets the cgroup. health: the check is a child, too. 0 or -ENOMEM. */
int agent_children_create(struct agent_children **ret, struct agent_observer *observer,
                          const struct agent_host *host, struct spawn_guardian_job *guardians,
                          struct agent_health *health);

/* Waits for children that have ended. False when there is no child at all. */
bool agent_children_reap(struct agent_children *c);

/* Finds out whether a cgroup can be made for each generation, once. The calls wait for no disk. */
void agent_children_seek_cgroup(struct agent_children *c);

/* The guardian has ended: its keeper (job_cgroup_os.h), now a child of crun, is not one of the processes to end. */
void agent_children_spare_keeper(struct agent_children *c);

/* Kills what a lost guardian left to crun, round after round; GROUP_EMPTY follows. */
void agent_children_sweep(struct agent_children *c);

/* Prints the names of the processes that do not end on SIGKILL. */
void agent_children_print_stuck(const struct agent_children *c);
