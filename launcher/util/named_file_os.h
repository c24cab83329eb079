#pragma once

/* A file that is to be removed by its name only while the name is still of that file: another process may have put its own
 * there. Without malloc(). */

#include <sys/types.h>

struct named_file {
    char path[108]; /* of a socket at the longest; "": none */
    dev_t device;
    ino_t inode;
};

/* Of what has the name now. 0, -ENAMETOOLONG or another -errno: *ret is none then. */
int named_file_note(struct named_file *ret, const char *path);

/* Nothing happens for none, and what cannot be removed stays. */
void named_file_remove(const struct named_file *f);
