#pragma once

/*
 * The stacks of processes, by programs that crun does not need: py-spy for Python, else eu-stack, else gdb. Each call is
 * bounded in time, and so is what is kept of its output. A tool that waits for a process in state D is left behind: it has got
 * SIGKILL, and crun reaps it when the kernel lets it end. No process stays stopped by a tool that was killed.
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { STACK_OUTPUT_MAX = 256 << 10 };

enum stack_tool { STACK_TOOL_NONE, STACK_TOOL_PY_SPY, STACK_TOOL_EU_STACK, STACK_TOOL_GDB, STACK_TOOL_COUNT };

struct stack_tools {
    char *paths[STACK_TOOL_COUNT]; /* NULL: there is none */
    atomic_bool is_cancelled;
};

struct stack_job {
    pid_t pid;
    bool
        is_blocked; /* stopped, or in state D: it is not to be paused. Set, too, when that is found out by the attempt */
    bool is_native; /* native frames of a Python program, too */
    bool is_late;   /* result: the tool has not ended in time, or there was none left for it */
    enum stack_tool tool;
    char *text; /* result, malloc'ed and closed by a NUL; NULL: nothing was printed */
    size_t n_text;
};

/* CRUN_PYSPY or py-spy on PATH or in the folder of `python` (NULL: not known), eu-stack, gdb. May wait for a disk. */
void stack_tools_find(struct stack_tools *t, char *const *environment, const char *python);
void stack_tools_finish(struct stack_tools *t);

/* The best tool there is. */
enum stack_tool stack_tools_choose(const struct stack_tools *t, bool is_python);

/* Runs the tools of all jobs, a few at a time. They are started during limit_ns, and each has that time to end, or four seconds
 * where that is shorter. For a thread that is not the event loop's. */
void stack_tools_run(const struct stack_tools *t, struct stack_job *jobs, size_t n_jobs, uint64_t limit_ns);

/* For any thread: stack_tools_run() ends its tools, now and from now on, and their jobs are late. */
void stack_tools_cancel(struct stack_tools *t);
