#pragma once

/*
 * An environment as an array of NAME=value strings, as main() gets it and execve() takes it. The launcher's
 * cores get one passed in instead of asking getenv(), so that a test can hand them any.
 */

#include <stdbool.h>
#include <stddef.h>

/* The value of name, or NULL. */
const char *envp_get(char *const *environment, const char *name);

/* Whether one of the first n variables has the name of another one, NAME=VALUE. */
bool envp_has_name_of(char *const *environment, size_t n, const char *variable);

/* Whether a variable has one of the beginnings; NULL closes the list. */
bool envp_begins_with(const char *variable, const char *const *beginnings);
