#pragma once

/*
 * What a tool has printed about the stacks of a process (py-spy dump, eu-stack, gdb's "thread apply all bt"), reduced to the
 * main thread: one line for people, one kind for the comparison of ranks, one digest for the comparison over time. Pure, and
 * takes any bytes.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STACK_TEXT_SIZE = 160 };

enum stack_kind {
    STACK_UNKNOWN,    /* nothing could be read */
    STACK_OTHER,      /* the program's own code */
    STACK_COLLECTIVE, /* a collective operation or a message between ranks */
    STACK_DATA,       /* waits for a data loader */
    STACK_DESTROY,    /* has left the training loop: destroy_process_group() */
};

struct stack_summary {
    enum stack_kind kind;
    char text[STACK_TEXT_SIZE]; /* "all_reduce at train.py:88" */
    bool is_meeting;            /* in init_process_group() of PyTorch */
    uint64_t digest;            /* of functions, and of the lines of those that call others */
};

/* False, with kind STACK_UNKNOWN, when there is no frame of the main thread of process pid in it. */
bool stack_summarize(const char *bytes, size_t n_bytes, int pid, struct stack_summary *ret);
