#pragma once

/*
 * Recognises a command line that is meant for the OCI runtime called crun: podman, buildah and cri-o execute the first
 * program of that name that they find. Pure.
 */

#include <stdbool.h>

extern const char oci_call_answer[];

/* words: as for options_parse(). exists: there is a file called words[0]. */
bool oci_call_is(char *const *words, bool exists);
