#pragma once

/*
 * The activity of a rank between two looks, from numbers of /proc: whether the rank waits for other ranks, and else why the others
 * may wait for the rank. Pure; proc_activity_os.c reads the numbers.
 *
 * Order of the decision, first match: ended; stopped; state D; a compiler among the descendants, which reads headers;
 * bytes at ACTIVITY_BYTES_MIN a second or more; processor time of ACTIVITY_BUSY_SHARE or more; then the system call of the main thread.
 *
 * A rank in futex, poll, epoll_wait or a call that receives from a socket waits for other ranks, unless a child process runs: then the
 * rank waits for the child (a data loader). The same holds for a pipe. A rank in a polling loop (NCCL, a spin lock) computes as far as
 * /proc shows.
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
    ACTIVITY_CHILD,     /* waits for a child process */
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
    ACTIVITY_TARGET_SOCKET /* or an event of another thread, as of eventfd() */
};

/* Groups of system calls. */
enum activity_call {
    ACTIVITY_CALL_OTHER,  /* or not readable */
    ACTIVITY_CALL_RUNS,   /* none */
    ACTIVITY_CALL_WAITS,  /* for a lock, descriptors, a peer */
    ACTIVITY_CALL_READS,  /* from a descriptor */
    ACTIVITY_CALL_WRITES, /* to a descriptor */
    ACTIVITY_CALL_SLEEPS,
    ACTIVITY_CALL_REAPS, /* waits for the end of a child */
    ACTIVITY_CALL_OPENS  /* a FIFO that no other process has opened */
};

/* Bytes a second, from which on bytes count as progress. A waiting program may still read small files again and again (49 bytes of /etc/hosts
 * for each attempt to connect). */
enum {
    ACTIVITY_BYTES_MIN = 64 << 10,
    ACTIVITY_BUSY_SHARE = 20 /* one part in so many of the time */,
    ACTIVITY_THREADS_SHARE = 4
};

/* Differences since the look before. */
struct activity_facts {
    bool has_ended;
    char state;                  /* of the main thread: 'R', 'S', 'D', 'T' ... */
    enum activity_call call;     /* of the main thread */
    enum activity_target target; /* of the descriptor of the call; ACTIVITY_TARGET_NONE: none, or not known */
    uint64_t elapsed_ns;
    uint64_t ran_ns;        /* of all threads of the worker */
    uint64_t main_ran_ns;   /* of its main thread */
    uint64_t child_ran_ns;  /* of its descendants */
    bool child_compiles;    /* a compiler is among the descendants that ran */
    bool child_runs;        /* at the look a descendant was on a CPU or in state D */
    uint64_t read, written; /* bytes, descendants included */
};

enum activity activity_judge(const struct activity_facts *f);

/* Bytes a second, read or written. */
uint64_t activity_rate(const struct activity_facts *f);

/* Whether the rank waits for other ranks at the moment of the look, between two pieces of work as well. A rank with other busy
 * threads (the threads of a backward pass) may wait for these threads, and counts as busy. */
bool activity_waits_now(const struct activity_facts *f);

/* Whether processes of the name compile ("cc1plus", "ptxas"). */
bool activity_is_compiler(const char *name);

/* "reads", a word for programs. */
const char *activity_name(enum activity activity);

struct activity_words {
    enum activity activity;
    const char *path; /* of the descriptor; NULL: not known */
    uint64_t bytes_per_s;
    const char *place; /* in the kernel, of a blocked rank; NULL or "0": none */
    int64_t child;     /* ACTIVITY_CHILD, ACTIVITY_COMPILES: the process; 0: not known */
    const char *name;  /* of the process, or NULL */
};

/* "reads /data/x at 1.0 MB/s": a verb phrase with the rank as its subject, at most size - 1 bytes, in a
 * single line without control characters. */
void activity_text(const struct activity_words *w, char *out, size_t size);

/* "sleeps, in pause at train.py:9": adds the place to such a text, in front of which a former place is removed. May be cut. */
void activity_add_place(char *text, size_t size, const char *place);
