#pragma once

/* Which run of which job a process belongs to, and which generation of it: what orders the writers of one snapshot folder. */

#include <stdint.h>

enum { RUN_INSTANCE_SIZE = 33 }; /* with the NUL */

struct run_identity {
    char instance[RUN_INSTANCE_SIZE]; /* letters and digits; "": no launcher has given one */
    uint32_t generation;
};
