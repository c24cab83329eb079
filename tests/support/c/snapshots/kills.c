/*
 * Kills the snapshot writer, again and again, and looks at the folder each time: a valid snapshot loads, it is what
 * was saved, and it is not older than the last one that the writer had reported durable.
 *
 *     snapshot-kills random ROUNDS [SEED]    SIGKILL after a random time
 *     snapshot-kills calls                   SIGKILL before and after every system call of the writer
 *
 * The folder is made below TMPDIR. A writer goes on where the newest snapshot left it, so files of earlier rounds
 * are what the next one begins with. Prints what it saw; exits with 1 at the first broken promise.
 */

#include "tests/support/c/snapshots/content.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KEEP = 2, SAVES_FOREVER = INT32_MAX, SAVES_TRACED = 4, MEASURED_SAVES = 20, STOPS_MAX = 100000 };

/* Of the writer, in memory that outlives it. */
struct told {
    _Atomic uint64_t durable;
    _Atomic bool writing; /* the folder is prepared, the first save begins */
    _Atomic bool failed;
};

static char folder[256];
static struct told *told;

static void remove_folder(void)
{
    folder_empty(folder);
    rmdir(folder);
}

static void fail(const char *doing)
{
    fprintf(stderr, "snapshot-kills: %s: %s\n", doing, strerror(errno));
    exit(2);
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ------------------------------------------------------------------ the writer */

/* Saves step after step, and says which are durable. */
static void write_snapshots(uint64_t first, int n_saves)
{
    struct crw_snapshots *s;
    const char *failure;

    if (crw_snapshots_create(folder, KEEP, &s) != 0) {
        fprintf(stderr, "snapshot-kills: %s\n", crw_error_message());
        atomic_store(&told->failed, true);
        return;
    }
    atomic_store(&told->writing, true);
    for (int i = 0; i < n_saves; i++) {
        if (content_save(s, first + (uint64_t)i) != 0)
            atomic_store(&told->failed, true);
        crw_snapshots_wait(s);
        uint64_t durable = crw_snapshots_status(s, &failure);
        if (durable != CRW_NO_STEP)
            atomic_store(&told->durable, durable);
        if (failure) {
            fprintf(stderr, "snapshot-kills: %s\n", failure);
            atomic_store(&told->failed, true);
        }
    }
    crw_snapshots_destroy(s);
}

/* ------------------------------------------------------------------ after the kill */

struct seen {
    int n_killed_in_preparation, n_with_temporary, n_newer_than_told;
};

static void find_temporary(const char *in, const char *name, void *data)
{
    *(bool *)data |= snapshot_name_is_temporary(name);
}

/* Returns the newest step; `before` is the newest of the round before, which stays a promise. */
static uint64_t look(uint64_t before, struct seen *seen)
{
    uint64_t durable = atomic_load(&told->durable), step;
    char why[CONTENT_WHY_MAX];
    bool temporary = false;
    int n_warnings;

    if (durable < before)
        durable = before;
    if (atomic_load(&told->failed)) {
        fprintf(stderr, "snapshot-kills: a save failed that had no reason to\n");
        exit(1);
    }
    if (content_load_newest(folder, &step, &n_warnings, why) < 0) {
        fprintf(stderr, "snapshot-kills: %s\n", why);
        exit(1);
    }
    if (step < durable || step > durable + 1 || n_warnings > 0) {
        fprintf(stderr, "snapshot-kills: step %llu was durable; step %llu loads, %d files are damaged\n",
                (unsigned long long)durable, (unsigned long long)step, n_warnings);
        exit(1);
    }
    folder_for_each(folder, find_temporary, &temporary);
    seen->n_with_temporary += temporary;
    seen->n_newer_than_told += step > durable;
    seen->n_killed_in_preparation += !atomic_load(&told->writing);
    return step;
}

static void forget(void)
{
    atomic_store(&told->durable, 0);
    atomic_store(&told->writing, false);
}

static void say(const char *what, int n, const struct seen *seen)
{
    printf(
        "%s: %d kills in %s; %d while the folder was prepared, %d left an unfinished file, %d between the new "
        "name and its report; a valid snapshot loaded each time, none older than the last durable one\n",
        what, n, folder, seen->n_killed_in_preparation, seen->n_with_temporary, seen->n_newer_than_told);
}

/* ------------------------------------------------------------------ at random times */

static int64_t measure_save_ns(void)
{
    int64_t began = now_ns();

    write_snapshots(1, MEASURED_SAVES);
    forget();
    return (now_ns() - began) / MEASURED_SAVES;
}

static void sleep_ns(int64_t ns)
{
    const struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = ns % 1000000000};

    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

/* Each round is a generation, and now and then another run, so the writer has a fence to write, too. */
static void claim_for(int round)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "run%d", round / 10);
    (void)setenv("CRUN_INSTANCE", text, 1);
    (void)snprintf(text, sizeof(text), "%d", round % 10);
    (void)setenv("CRUN_GENERATION", text, 1);
}

static void kill_at_random(int n_rounds, unsigned seed)
{
    int64_t save_ns = measure_save_ns();
    uint64_t step = MEASURED_SAVES;
    struct seen seen = {0};

    srandom(seed);
    for (int i = 0; i < n_rounds; i++) {
        pid_t child;

        forget();
        child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            claim_for(i);
            write_snapshots(step + 1, SAVES_FOREVER);
            _exit(0);
        }
        /* Up to two saves long, and what it takes to begin. */
        sleep_ns((int64_t)((double)random() / RAND_MAX * (2.0 * (double)save_ns + 500000)));
        (void)kill(child, SIGKILL);
        if (waitpid(child, NULL, 0) != child)
            fail("waitpid");
        step = look(step, &seen);
    }
    printf("seed %u, %.2f ms for a save\n", seed, (double)save_ns / 1e6);
    say("random", n_rounds, &seen);
}

/* ------------------------------------------------------------------ at every system call */

/* Waiting for another thread is no step of the writer. */
static bool counts(pid_t thread)
{
    struct __ptrace_syscall_info info;

    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) <= 0)
        return false;
    return info.op == PTRACE_SYSCALL_INFO_EXIT || info.entry.nr != SYS_futex;
}

/* Lets the writer run to its at-th stop and kills it there. false: it came to its end before. */
static bool kill_at(pid_t child, int at)
{
    int n_stops = 0, status;
    pid_t thread;

    while ((thread = waitpid(-1, &status, __WALL)) > 0) {
        int signal_number = 0;

        if (!WIFSTOPPED(status)) {
            if (thread == child)
                return false;
            continue;
        }
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            if (counts(thread) && ++n_stops == at)
                return true;
        } else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
            signal_number = WSTOPSIG(status);
        }
        (void)ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(uintptr_t)signal_number);
    }
    fail("waitpid");
    return false;
}

static pid_t start_traced(uint64_t first)
{
    pid_t child = fork();
    int status;

    if (child < 0)
        fail("fork");
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(3);
        (void)raise(SIGSTOP);
        write_snapshots(first, SAVES_TRACED);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, child, NULL,
               (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) < 0 ||
        ptrace(PTRACE_SYSCALL, child, NULL, NULL) < 0)
        fail("ptrace");
    return child;
}

static void kill_at_calls(void)
{
    uint64_t step = 0;
    struct seen seen = {0};
    int at;

    for (at = 1; at < STOPS_MAX; at++) {
        pid_t child, ended;
        bool killed;

        forget();
        child = start_traced(step + 1);
        killed = kill_at(child, at);
        if (killed) {
            (void)kill(child, SIGKILL);
            while ((ended = waitpid(-1, NULL, __WALL)) > 0 || errno == EINTR)
                if (ended == child)
                    break;
        }
        step = look(step, &seen);
        if (!killed)
            break;
    }
    say("calls", at - 1, &seen);
}

/* ------------------------------------------------------------------ the program */

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");

    (void)snprintf(folder, sizeof(folder), "%s/snapshot-kills-XXXXXX", tmp ? tmp : "/tmp");
    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (told == MAP_FAILED || !mkdtemp(folder))
        fail("a folder for the snapshots");
    atexit(remove_folder);
    if (argc >= 3 && strcmp(argv[1], "random") == 0)
        kill_at_random(atoi(argv[2]), argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : (unsigned)now_ns());
    else if (argc == 2 && strcmp(argv[1], "calls") == 0)
        kill_at_calls();
    else {
        fprintf(stderr, "usage: %s random ROUNDS [SEED] | calls\n", argv[0]);
        return 2;
    }
    return 0;
}
