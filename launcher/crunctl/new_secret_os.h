#pragma once

/* crunctl secret new: a file with 32 random bytes as hexadecimal digits, for its owner alone. */

#include "launcher/util/control_path.h"

/* file: where to, or NULL: crun/secret below XDG_CONFIG_HOME, else ~/.config, whose folders are made. path has the place after
 * every result. 0; -EEXIST: it is never replaced; or another -errno. */
int new_secret_write(char *const *environment, const char *file, char path[CONTROL_PATH_SIZE]);
