#pragma once

/* For tests whose ranks are processes: a failed check ends the rank, and the test reads its exit code. */

#include <stdio.h>
#include <unistd.h>

#include "worker-runtime/crw.h"

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, crw_error_message());        \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
