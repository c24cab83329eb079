#pragma once

/*
 * Causes and remedies for the lines of a launch command on standard error. Pure.
 */

/* "its host key is unknown: run `ssh HOST` once ...": the rest of a sentence behind the name of the host. Malloc'ed. NULL: the text
 * is unknown, and the caller shows the last line. "": the text names no cause. host: as the command got it, perhaps with
 * user@. */
char *front_remedy(const char *text, const char *host);
