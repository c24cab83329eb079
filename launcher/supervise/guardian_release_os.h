#pragma once

/*
 * When crun is ended by a signal that it does not handle, its guardian should let the workers save their state before it
 * kills them (GUARDIAN_RELEASE). A handler for all signals that would end crun sends that order and ends crun by the
 * same signal. SIGKILL and faults of crun itself (SIGSEGV ...) leave no time for an order: then the guardian kills
 * at once.
 */

#include <signal.h>

/* For main(): installs the handler for signals with the default action "terminate", but for those in `except`. */
void guardian_release_on_signals(const sigset_t *except);

/* The socket of the present guardian; -1: there is none. */
void guardian_release_set_link(int link);
