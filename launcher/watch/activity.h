#pragma once

/*
 * The activity of a rank between two looks, from numbers of /proc: whether the rank waits for other ranks, and else the activity that
 * the others may wait for. Pure; proc_activity_os.c reads the numbers.
 *
 * Order of the decision, first match: ended; stopped; state D; bytes at ACTIVITY_BYTES_MIN a second or more; a compiler among its
 * processes that runs; processor time of ACTIVITY_BUSY_SHARE or more; then the system call of the main thread.
 *
 * A rank in futex, poll, epoll_wait or a call that receives from a socket waits for other ranks, unless a process of its own runs: then
 * it waits for that process (a data loader). The same holds for a pipe. A rank that polls in a loop (NCCL, a spin lock) computes as far as /proc shows.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum activity {
    ACTIVITY_UNKNOWN,
    ACTIVITY_WAITS, /* for other ranks */
    ACTIVITY_COMPUTES,
    ACTIVITY_COMPILES,
    ACTIVITY_READS,
    ACTIVITY_WRITES,
    ACTIVITY_SLEEPS,
    ACTIVITY_NO_INPUT,  /* reads from a pipe or terminal without input */
    ACTIVITY_FULL_PIPE, /* writes to a pipe without a reader's progress */
    ACTIVITY_CHILD,     /* waits for a process of its own */
    ACTIVITY_STOPPED,
    ACTIVITY_BLOCKED, /* state D */
    ACTIVITY_ENDED,
    ACTIVITY_COUNT
};

/* Where a descriptor leads. */
enum activity_target {
    ACTIVITY_TARGET_NONE,
    ACTIVITY_TARGET_FILE,
    ACTIVITY_TARGET_PIPE,
    ACTIVITY_TARGET_SOCKET
};

/* Bytes a second that count as progress. A program that waits may still read small files again and again (49 bytes of /etc/hosts
 * for each attempt to connect). */
enum { ACTIVITY_BYTES_MIN = 64 << 10, ACTIVITY_BUSY_SHARE = 20 /* one part in so many of the time */ };

/* Differences are those since the look before. */
struct activity_facts {
    bool has_ended;
    char state; /* of the main thread: 'R', 'S', 'D', 'T' ... */
    int call;   /* number of its system call; -1: it runs; -2: not readable */
    enum activity_target
        target; /* of the call's descriptor; ACTIVITY_TARGET_NONE: it has none, or that was not read */
    uint64_t elapsed_ns;
    uint64_t ran_ns;        /* of all threads of the worker */
    uint64_t child_ran_ns;  /* of its descendants */
    bool child_compiles;    /* a compiler is among those that ran */
    uint64_t read, written; /* bytes, descendants included */
};

enum activity activity_judge(const struct activity_facts *f);

/* Whether the first argument of a system call is a descriptor from which bytes are read, or to which they are written. */
bool activity_call_uses_descriptor(int call);

/* Processes by this name compile ("cc1plus", "ptxas"). */
bool activity_is_compiler(const char *name);

struct activity_words {
    enum activity activity;
    const char *path; /* of the descriptor; NULL: not known */
    uint64_t bytes_per_s;
    const char *place; /* in the kernel, of a blocked rank; NULL or "0": none */
    int64_t child;     /* ACTIVITY_CHILD, ACTIVITY_COMPILES: the process; 0: not known */
    const char *name;  /* of that process, or NULL */
};

/* "reads /data/x at 1.0 MB/s": a verb phrase with the rank as its subject, at most size - 1 bytes. */
void activity_text(const struct activity_words *w, char *out, size_t size);
