#pragma once

/*
 * A failure on request, to show what becomes of it: --fault rank=R,step=S,kind=kill|exit|hang|nan|kill-early. It
 * happens in the middle of step S, on the CPU between backward and all-reduce, on a GPU when both are launched; early:
 * before the step. And only before the first restart: the workers that a launcher starts afterwards get the same command
 * line.
 */

#include <stdbool.h>
#include <stdint.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_KILL,       /* the process dies of SIGKILL */
    FAULT_EXIT,       /* it exits with FAULT_EXIT_CODE */
    FAULT_HANG,       /* it waits for ever */
    FAULT_NAN,        /* its loss and a gradient become NaN */
    FAULT_KILL_EARLY, /* as FAULT_KILL, before anything of the step was done */
    FAULT_KIND_COUNT
};

enum { FAULT_EXIT_CODE = 1 };

struct fault {
    enum fault_kind kind;
    int rank;
    uint64_t step; /* from 1 */
};

/* 0, or -1 when the text is not as above. */
int fault_parse(const char *text, struct fault *ret);

/* True when this rank's step is the one. early: the step has not begun. */
bool fault_is_due(const struct fault *f, bool early, int restart_count, int rank, uint64_t step);

/* Prints a message and does it, except for FAULT_NAN, which is the caller's to do: returns only then. */
void fault_happen(const struct fault *f);
