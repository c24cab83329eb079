#pragma once

/* Ctrl-Z, for crun. SIGTSTP has its default action and is blocked. */

#include <stdbool.h>

/* See suspend.h. Reads /proc; where there is none, only the parent counts. */
bool suspend_is_possible(void);

/* Sends SIGTSTP to crun itself, and returns when crun has been continued (SIGCONT is pending then, and blocked): true. False: the
 * kernel has ignored the signal. */
bool suspend_self(void);
