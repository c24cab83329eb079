/*
 * Runs a stack tool on processes, as crun does, and kills it at a random moment of its work, again and again.
 *
 * Usage: tool_killer py-spy|eu-stack|gdb PATH KILLS SEED PID...
 *
 * A round that ends before its moment kills nothing and does not count. Prints "KILLS kills, N stopped": N counts the rounds
 * that left a process in state T. These processes are continued, so that each round begins alike.
 */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/time.h"
#include "launcher/watch/proc_sample_os.h"
#include "launcher/watch/stack_tool_os.h"

enum { PIDS_MAX = 256, MOMENT_MAX_MS = 1000, LATER_MS = 20 };

struct round {
    struct stack_tools tools;
    struct stack_job jobs[PIDS_MAX];
    size_t n_jobs;
    long moment_us; /* -1: none */
};

static void pause_us(long us)
{
    const struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

    (void)nanosleep(&pause, NULL);
}

static void *cancel_at_moment(void *data)
{
    struct round *r = data;

    pause_us(r->moment_us);
    stack_tools_cancel(&r->tools);
    return NULL;
}

/* Whether a tool was killed. */
static bool run_round(struct round *r)
{
    pthread_t thread;
    bool any_late = false;

    atomic_store(&r->tools.is_cancelled, false);
    if (r->moment_us >= 0 && pthread_create(&thread, NULL, cancel_at_moment, r) != 0)
        abort();
    stack_tools_run(&r->tools, r->jobs, r->n_jobs, UINT64_C(60000000000));
    if (r->moment_us >= 0)
        (void)pthread_join(thread, NULL);
    for (size_t i = 0; i < r->n_jobs; i++) {
        any_late |= r->jobs[i].is_late;
        free(r->jobs[i].text);
        r->jobs[i].text = NULL;
        r->jobs[i].n_text = 0;
    }
    return any_late;
}

static bool any_stopped(const struct round *r)
{
    bool any = false;

    pause_us(LATER_MS * 1000);
    for (size_t i = 0; i < r->n_jobs; i++)
        if (proc_sample_state(r->jobs[i].pid) == 'T') {
            any = true;
            (void)kill(r->jobs[i].pid, SIGCONT);
        }
    return any;
}

static enum stack_tool tool_of(const char *name)
{
    return strcmp(name, "gdb") == 0      ? STACK_TOOL_GDB
           : strcmp(name, "py-spy") == 0 ? STACK_TOOL_PY_SPY
                                         : STACK_TOOL_EU_STACK;
}

int main(int argc, char **argv)
{
    static struct round r;
    int n_stopped = 0, n_kills = 0;

    if (argc < 6 || argc - 5 > PIDS_MAX)
        return 2;
    enum stack_tool tool = tool_of(argv[1]);
    r.tools.paths[tool] = argv[2];
    (void)signal(SIGCHLD, SIG_IGN); /* tools are not waited for */
    srand48(atol(argv[4]));
    for (int i = 5; i < argc; i++)
        r.jobs[r.n_jobs++] = (struct stack_job){.pid = (pid_t)atol(argv[i]), .tool = tool};
    const uint64_t begin_ns = now_ns();
    r.moment_us = -1;
    (void)run_round(&r);
    long whole_us = (long)((now_ns() - begin_ns) / 1000);
    if (whole_us > MOMENT_MAX_MS * 1000)
        whole_us = MOMENT_MAX_MS * 1000;
    while (n_kills < atoi(argv[3])) {
        r.moment_us = (long)(drand48() * (double)whole_us);
        bool was_killed = run_round(&r);
        n_kills += was_killed;
        n_stopped += any_stopped(&r);
    }
    printf("%d kills, %d stopped\n", n_kills, n_stopped);
    return n_stopped > 0;
}
