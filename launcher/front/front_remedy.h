#pragma once

/*
 * What a launch command printed on standard error, as a sentence with a remedy. Pure.
 */

#include <stdbool.h>
#include <stddef.h>

enum { FRONT_REMEDY_SIZE = 512 };

/* False: no line of text is known; the caller shows the last line itself. host: as the launch command got it, perhaps with user@. */
bool front_remedy(const char *text, const char *host, char ret[FRONT_REMEDY_SIZE]);
