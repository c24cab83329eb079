#pragma once

/*
 * Which ranks the ranks of all nodes of a job wait for. An agent marks ranks by a comparison within its node, and where all ranks of a
 * node are late, none of them stands out there. So crunctl compares all of them, when it has the statuses of the nodes: each has
 * the last steps of its ranks with their ages, by which the past seconds are gone through again with the rule of stragglers.h.
 *
 * No two clocks are compared. The time of a step is its age when the agent reported, and the age of that report when crunctl had
 * it, which the receiver of the report measured. What is left of the error is the time that a report took, so a rank has to be
 * late by 200 ms (slack) at least. Agents look once a second: between two looks that are more than one step apart the times of steps are
 * interpolated, and the slack is twice the distance of such looks. Pure.
 */

struct job_status;

/* Adds marks to those of the agents. Nodes whose report has no age (of an older release), or of an earlier generation, are left
 * out, and a job with one node that is left stays as it is. Then the steps and their ages are dropped from the status: crunctl does not show them.
 * Without memory no mark is added. */
void job_stragglers_mark(struct job_status *s);
