#pragma once

/*
 * `crun --front-channel`: the far end of a front's channel on a host. Takes the header of the job, starts one agent, and carries output,
 * stdin and the agent's connections to the rendezvous between the agent and the front.
 *
 * Happy path: greeting, header, the agent starts; it hands over a pipe for each output of a worker; the agent ends, what is left
 * in the pipes follows, then RESULT.
 *
 * Ways to fail: the front closes the channel, breaks the protocol or is silent for 20 s, or a signal ends the far end: the
 * agent gets SIGTERM, and SIGKILL 5 s after its own time limit. When the far end dies, the kernel sends SIGTERM to the
 * agent. A start that fails is a NOTE.
 *
 * A slow front blocks the writers of output, by the windows (channel_streams.h) and by FAR_OUT_MAX for all streams together.
 */

#include <signal.h>

/* before: the signal mask at the start of crun; all signals are blocked. Returns the exit code: as of the agent. */
int far_run(const sigset_t *before);
