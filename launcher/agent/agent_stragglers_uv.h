#pragma once

struct agent_host;
struct agent_observer;

/* Marks ranks that come late again and again. The job runs without marks as well. */
void agent_stragglers_open(struct agent_observer *ret, const struct agent_host *host);
