#pragma once

/*
 * The system calls of the snapshot writer, one of which fails, or is the last thing that the process does.
 */

#include "worker-runtime/checkpoint/snapshot_file_os.h"

#include <stdbool.h>

enum fault_mode {
    FAULT_ERROR,        /* the call does nothing and returns the error */
    FAULT_ERROR_STAYS,  /* it, and all calls of its kind after it */
    FAULT_CRASH_BEFORE, /* the process ends instead of the call */
    FAULT_CRASH_HALF,   /* a write does half of its work, then the process ends */
    FAULT_CRASH_AFTER,  /* the process ends when the call is done */
    FAULT_MODE_COUNT
};

enum call { CALL_CREATE = 1, CALL_RESERVE, CALL_WRITE, CALL_SYNC, CALL_CLOSE, CALL_RENAME, CALL_REMOVE };

struct fault {
    int n_calls;
    int at;         /* the number of the call that meets its fault; 0: none */
    enum call only; /* its kind, when not 0 */
    enum fault_mode mode;
    int error;
    size_t write_max; /* 0: no limit */
    int n_interrupts; /* so many writes return -EINTR first */
    enum call met;    /* what call met it; 0: none so far */
};

/* f must outlive it. */
struct snapshot_io faulty_io(struct fault *f);
