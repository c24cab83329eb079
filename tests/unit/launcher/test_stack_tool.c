/* Programs that print stacks, as a shell script that prints nothing and does not end. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "launcher/watch/proc_look_os.h"
#include "launcher/watch/stack_tool_os.h"

#include "tests/support/c/cmocka_fixed.h"

static char state_of_process = 'S';

char proc_look_state(pid_t pid)
{
    (void)pid;
    return state_of_process;
}

static void write_tool(char path[32])
{
    static const char script[] = "#!/bin/sh\nexec sleep 60\n";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, script, sizeof(script) - 1), sizeof(script) - 1);
    assert_int_equal(fchmod(fd, 0700), 0);
    assert_int_equal(close(fd), 0);
}

/* A tool that is killed has paused the process perhaps, which stays so until the tool has ended: who looks at the process next
 * would take it for stopped. */
static void a_tool_that_was_late_has_ended(void **state)
{
    char path[32] = "/tmp/test_stack_tool.XXXXXX";
    struct stack_tools tools = {.paths = {[STACK_TOOL_EU_STACK] = path}};
    int n_ended = 0;

    write_tool(path);
    for (int i = 0; i < 10; i++) {
        struct stack_job jobs[2] = {{.pid = getpid(), .tool = STACK_TOOL_EU_STACK},
                                    {.pid = getpid(), .tool = STACK_TOOL_EU_STACK}};
        const uint64_t late_ns = now_ns() + 50000000u;

        stack_tools_run(&tools, jobs, 2, late_ns);
        /* It waits for half a second, in which a process on a busy machine may not have the time to end. */
        bool was_long = now_ns() - late_ns >= 500000000u;
        pid_t ended;
        while ((ended = waitpid(-1, NULL, was_long ? 0 : WNOHANG)) > 0)
            n_ended++;
        assert_true(ended < 0 && errno == ECHILD); /* 0: one still runs */
        for (int k = 0; k < 2; k++) {
            assert_true(jobs[k].is_late);
            free(jobs[k].text);
        }
    }
    assert_in_range(n_ended, 1, 20); /* there it may also be too late to start one */
    assert_int_equal(unlink(path), 0);
    (void)state;
}

/* One that waits for a process in state D may stay as long as the process does. */
static void a_tool_that_cannot_be_waited_for_is_left(void **state)
{
    char path[32] = "/tmp/test_stack_tool.XXXXXX";
    struct stack_tools tools = {.paths = {[STACK_TOOL_EU_STACK] = path}};
    struct stack_job job = {.pid = getpid(), .tool = STACK_TOOL_EU_STACK};
    uint64_t begin_ns = now_ns();

    write_tool(path);
    state_of_process = 'D';
    stack_tools_run(&tools, &job, 1, begin_ns + 60000000000u);
    state_of_process = 'S';
    assert_true(job.is_blocked && !job.is_late);
    assert_in_range(now_ns() - begin_ns, 1000000000u, 20000000000u);
    assert_true(waitpid(-1, NULL, 0) > 0);
    free(job.text);
    assert_int_equal(unlink(path), 0);
    (void)state;
}

static void *cancel_soon(void *data)
{
    const struct timespec pause = {.tv_nsec = 50000000};

    (void)nanosleep(&pause, NULL);
    stack_tools_cancel(data);
    return NULL;
}

/* The job has ended: its folders are removed when the thread that runs the tools has ended, too. */
static void tools_end_when_they_are_cancelled(void **state)
{
    char path[32] = "/tmp/test_stack_tool.XXXXXX";
    struct stack_tools tools = {.paths = {[STACK_TOOL_EU_STACK] = path}};
    struct stack_job jobs[6];
    uint64_t begin_ns = now_ns();
    pthread_t thread;

    write_tool(path);
    for (int i = 0; i < 6; i++)
        jobs[i] = (struct stack_job){.pid = getpid(), .tool = STACK_TOOL_EU_STACK};
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &tools), 0);
    stack_tools_run(&tools, jobs, 6, begin_ns + 60000000000u);
    assert_in_range(now_ns() - begin_ns, 50000000u, 3000000000u); /* one tool alone is given four seconds */
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (int i = 0; i < 6; i++) {
        assert_true(jobs[i].is_late);
        free(jobs[i].text);
    }
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
    assert_int_equal(unlink(path), 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tool_that_was_late_has_ended),
        cmocka_unit_test(a_tool_that_cannot_be_waited_for_is_left),
        cmocka_unit_test(tools_end_when_they_are_cancelled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
