#pragma once

/* The state of workers that outlives its processes (launcher/snapshots), as a part of the agent: begins with each generation, and takes
 * its messages to and from other agents. */

struct agent_host;
struct agent_observer;

/* 0 or -errno. A job whose workers were lent no memory goes without. */
int agent_snapshots_create(struct agent_observer *observer, const struct agent_host *host);
