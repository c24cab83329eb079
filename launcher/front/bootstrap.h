#pragma once

/*
 * The shell text that starts crun on a host where crun may not be installed. Pure.
 *
 * In order: `crun`, `crun-launch` on PATH and the path of the front's own crun in a folder of the user, each if it has the front's version; then the copy
 * in ~/.cache/crun/bin/HASH ($XDG_CACHE_HOME), checked by sha256sum before each use; then a copy that the front sends:
 *
 *   host     "CRUN-NEEDS MACHINE HASH\n"
 *   front    "SIZE\n" and SIZE bytes; "0\n": there is none
 *   host     executes crun --front-channel, which greets the front; or "CRUN-FAILED sentence\n", and ends with 1
 *
 * The front sends nothing before CRUN-NEEDS or the greeting, and nothing between the bytes and the greeting: head(1) of busybox
 * reads ahead. The copy is written under a name of host and process in a folder with mode 700 and renamed when its hash is right,
 * so hosts that share a home do not disturb each other.
 *
 * The text has no newline, single quote, backslash or "!": sh, bash, zsh, csh and fish as login shell take
 * exec /bin/sh -c 'TEXT' alike.
 */

#include <stdbool.h>
#include <stddef.h>

#define BOOTSTRAP_NEEDS "CRUN-NEEDS "
#define BOOTSTRAP_FAILED "CRUN-FAILED "
#define BOOTSTRAP_MARK "--front-channel" /* in each script */

struct bootstrap_build {
    const char *machine; /* as uname -m prints it */
    const char *hash;    /* SHA-256 in 64 hexadecimal digits */
};

struct bootstrap {
    const char *version;    /* of the front's crun */
    const char *executable; /* path of the front's crun, tried on hosts too; NULL: none */
    const struct bootstrap_build *builds;
    size_t n_builds;
    bool may_copy; /* false: --no-copy */
};

/* For /bin/sh -c. Malloc'ed, or NULL without memory. */
char *bootstrap_script(const struct bootstrap *b);

/* /bin/sh -c '...', for a login shell, perhaps behind exec or sudo. Malloc'ed, or NULL without memory (or for script NULL). */
char *bootstrap_command(const char *script);
