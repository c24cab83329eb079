#pragma once

/* Messages between the agents of a job (agent_message_json.h). Nothing of it reaches the core. */

#include <stddef.h>
#include <stdint.h>

struct agent_conn;
struct agent_message;

/* Forwards the body to the members of the present generation that it is for. One that has not read much of what it was sent before misses
 * it: views are more important, and are never dropped. */
void agent_messages_forward(struct agent_conn *a, const struct agent_message *head, const uint8_t *body,
                            size_t n);
