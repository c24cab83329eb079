#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct agent_health;
struct agent_host;
struct agent_observer;

/* on_fit: the check has passed. on_unfit: the check has failed, outside of JOB_ROUNDS. Both get the data of the host. */
struct agent_health *agent_health_create(struct agent_observer *observer, const struct agent_host *host,
                                         void (*on_fit)(void *data),
                                         void (*on_unfit)(void *data, const char *why));

/* Begins the health check. */
void agent_health_begin(struct agent_health *h);

/* The rendezvous needs this node, whose check has failed. */
void agent_health_again(struct agent_health *h);

bool agent_health_is_checking(const struct agent_health *h);

/* A child of crun has ended, perhaps the process of the check. */
void agent_health_reaped(struct agent_health *h, pid_t pid, int status);

/* Ends a check that runs or is to be repeated. */
void agent_health_end(struct agent_health *h);
