#pragma once

/*
 * The lines of crund --debug: every event and action of the rounds, and what happens to agents' connections, one line
 * each with its time. Nothing is formatted unless rounds_shell.debug is set.
 */

#include <stdbool.h>

struct agent_conn;
struct rounds_action;
struct rounds_event;
struct rounds_shell;

enum { ROUNDS_DEBUG_SIZE = 1024 };

void rounds_debug_event(struct rounds_shell *r, const struct rounds_event *event);
void rounds_debug_action(struct rounds_shell *r, const struct rounds_action *action);

/* Something happened to a connection: "shut down", "closed"; with_peer: and the address of the client. */
void rounds_debug_conn(struct rounds_shell *r, const struct agent_conn *a, const char *what, bool with_peer);
