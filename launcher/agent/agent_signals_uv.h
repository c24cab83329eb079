#pragma once

#include <sys/types.h>

struct agent_children;
struct agent_hang;
struct agent_host;
struct agent_signals;

/* children: reaps. hang: takes stacks before a SIGQUIT. 0 or -errno. */
int agent_signals_create(struct agent_signals **ret, const struct agent_host *host,
                         struct agent_children *children, struct agent_hang *hang);

/* Reads all pending signals. */
void agent_signals_read(struct agent_signals *s);

/* A worker, or a process of its session, has sent a signal to its parent process. */
void agent_signals_pass(const struct agent_host *host, int signal, pid_t sender);

/* Signals are not read any more. */
void agent_signals_close(struct agent_signals *s);
