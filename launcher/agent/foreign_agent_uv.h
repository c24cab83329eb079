#pragma once

struct job;
struct job_keys;

/*
 * crun --agent-fd: takes part in the rendezvous for an agent that is another program. Returns the exit code, when the
 * job has ended or the agent has. keys: of the session, or NULL; the store of the workers is in the clear all the same, as
 * clients of PyTorch know no other.
 */
int foreign_agent_run(const struct job *job, struct job_keys *keys);
