#pragma once

/*
 * A call that may end its process, or take all memory of the machine, runs in a child with limits: address space (not under
 * a sanitizer, which needs more), size of files and memory files, and time.
 */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/sanitized.h"

enum { CHILD_AS = 3u << 30, CHILD_FILE = 1 << 30, CHILD_RSS = 512 << 10 /* KiB */, CHILD_S = 20 };

/* 0: the child returned 0; else its status as waitpid() gives it, -1: it has used too much memory. output: its stderr. */
static inline int run_bounded(int (*call)(void *data), void *data, FILE *output)
{
    struct rusage used;
    int status = 0;
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        const struct rlimit as = {CHILD_AS, CHILD_AS}, file = {CHILD_FILE, CHILD_FILE}, core = {0, 0};

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 1; i < NSIG; i++)
            (void)signal(i, SIG_DFL); /* cmocka has handlers, which would make an exit code of a crash */
        if (dup2(fileno(output), STDERR_FILENO) < 0 || dup2(fileno(output), STDOUT_FILENO) < 0 ||
            (!IS_SANITIZED && setrlimit(RLIMIT_AS, &as) < 0) || setrlimit(RLIMIT_FSIZE, &file) < 0 ||
            setrlimit(RLIMIT_CORE, &core) < 0)
            _exit(120);
        alarm(CHILD_S);
        status = call(data);
        (void)fflush(NULL);
        _exit(status);
    }
    while (pid > 0 && wait4(pid, &status, 0, &used) < 0)
        ;
    return pid < 0 || (status == 0 && used.ru_maxrss > CHILD_RSS) ? -1 : status;
}
