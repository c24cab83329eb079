#pragma once

/*
 * What a launch command printed on standard error, as a cause with a remedy. Pure.
 */

/* "its host key is unknown: run `ssh HOST` once ...": what follows the name of the host in a sentence. Malloc'ed; NULL: no line of
 * text is known, and the caller shows the last line. host: as the command got it, perhaps with user@. */
char *front_remedy(const char *text, const char *host);
