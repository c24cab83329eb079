#pragma once

/*
 * crund as a process beside a unit test: set daemon_path, and give start_daemon() and stop_daemon() to cmocka as
 * the group's setup and teardown. For one file of each program.
 */

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

static const char *daemon_path;
static pid_t daemon_pid;
static uint16_t daemon_port;

/* It says where it listens; the port is what stands behind the last colon. */
static int start_daemon(void **state)
{
    char said[512] = "";
    size_t n = 0;
    int out[2];

    assert_int_equal(pipe(out), 0);
    daemon_pid = fork();
    assert_true(daemon_pid >= 0);
    if (daemon_pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], STDOUT_FILENO);
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        close(out[1]);
        execl(daemon_path, daemon_path, "--listen", "127.0.0.1:0", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    while (n < sizeof(said) - 1 && !strchr(said, '\n')) {
        ssize_t got = read(out[0], said + n, sizeof(said) - 1 - n);

        assert_true(got > 0);
        n += (size_t)got;
        said[n] = '\0';
    }
    assert_non_null(strrchr(said, ':'));
    daemon_port = (uint16_t)atoi(strrchr(said, ':') + 1);
    assert_true(daemon_port > 0);
    /* The pipe stays open: the daemon may say more. */
    return 0;
}

static int stop_daemon(void **state)
{
    kill(daemon_pid, SIGTERM);
    return waitpid(daemon_pid, NULL, 0) == daemon_pid ? 0 : -1;
}
