#pragma once

struct job;

/*
 * crun --agent-fd: takes part in the rendezvous for an agent that is another program. Returns the exit code, when the
 * job has ended or the agent has.
 */
int foreign_agent_run(const struct job *job);
