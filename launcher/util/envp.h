#pragma once

/*
 * An environment as an array of NAME=value strings, as main() gets it and execve() takes it. The launcher's
 * cores get one passed in instead of asking getenv(), so that a test can hand them any.
 */

/* The value of name, or NULL. */
const char *envp_get(char *const *environment, const char *name);
