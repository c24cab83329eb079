/* Programs that print stacks, as a shell script that prints nothing and does not end, or as this program, which attaches and
 * prints nothing. */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "launcher/util/proc_stat_os.h"
#include "launcher/watch/examined_os.h"
#include "launcher/watch/proc_sample_os.h"
#include "launcher/watch/stack_tool_os.h"

#include "tests/support/c/cmocka_fixed.h"

static char state_of_process = 'S';

char proc_sample_state(pid_t pid)
{
    (void)pid;
    return state_of_process;
}

static void write_script(char path[32], const char *script)
{
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, script, strlen(script)), strlen(script));
    assert_int_equal(fchmod(fd, 0700), 0);
    assert_int_equal(close(fd), 0);
}

static void write_tool(char path[32])
{
    write_script(path, "#!/bin/sh\nexec sleep 60\n");
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

        stack_tools_run(&tools, jobs, 2, 50000000u);
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
    stack_tools_run(&tools, &job, 1, 60000000000u);
    state_of_process = 'S';
    assert_true(job.is_blocked && !job.is_late);
    assert_in_range(now_ns() - begin_ns, 1000000000u, 20000000000u);
    assert_true(waitpid(-1, NULL, 0) > 0);
    free(job.text);
    assert_int_equal(unlink(path), 0);
    (void)state;
}

/* gdb prints much about many threads, and detaches when it has printed all of it. */
static void a_tool_that_prints_much_ends_by_itself(void **state)
{
    char path[32] = "/tmp/test_stack_tool.XXXXXX", end[48];
    struct stack_tools tools = {.paths = {[STACK_TOOL_EU_STACK] = path}};
    struct stack_job job = {.pid = getpid(), .tool = STACK_TOOL_EU_STACK};

    write_script(path, "#!/bin/sh\nyes | head -c 400000\nexec >&- 2>&-\nsleep 0.1\n: > $0.end\n");
    (void)snprintf(end, sizeof(end), "%s.end", path); /* fits */
    stack_tools_run(&tools, &job, 1, 60000000000u);
    assert_true(!job.is_late && job.n_text == STACK_OUTPUT_MAX);
    assert_int_equal(waitpid(-1, NULL, 0) > 0, 1);
    assert_int_equal(unlink(end), 0);
    assert_int_equal(unlink(path), 0);
    free(job.text);
    (void)state;
}

/* Those that begin late in the time for starts are not killed at its end. */
static void each_tool_has_its_own_time(void **state)
{
    char path[32] = "/tmp/test_stack_tool.XXXXXX";
    struct stack_tools tools = {.paths = {[STACK_TOOL_EU_STACK] = path}};
    struct stack_job jobs[8];

    write_script(path, "#!/bin/sh\nexec sleep 1\n");
    for (int i = 0; i < 8; i++)
        jobs[i] = (struct stack_job){.pid = getpid(), .tool = STACK_TOOL_EU_STACK};
    stack_tools_run(&tools, jobs, 8, 1900000000u);
    for (int i = 0; i < 8; i++) {
        assert_false(jobs[i].is_late);
        free(jobs[i].text);
    }
    while (waitpid(-1, NULL, 0) > 0)
        ;
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
    stack_tools_run(&tools, jobs, 6, 60000000000u);
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

/* ---- the state of the process afterwards ---- */

enum { ATTACHED_MS = 50, STATE_PATIENCE_MS = 5000 };

/* The tool, as `THIS -p PID`. */
static int attach_and_wait(const char *pid)
{
    if (ptrace(PTRACE_ATTACH, (pid_t)atol(pid), NULL, NULL) < 0)
        return 1;
    for (;;)
        (void)pause();
}

static void pause_ms(long ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&pause, NULL);
}

static char real_state(pid_t pid)
{
    struct proc_stat stat;

    return proc_stat_read(pid, &stat) ? stat.state : 0;
}

static void await_state(pid_t pid, char state)
{
    for (int i = 0; i < STATE_PATIENCE_MS && real_state(pid) != state; i++)
        pause_ms(1);
    assert_int_equal(real_state(pid), state);
}

/* A wait in state D, that of a parent in vfork(), which is over after wait_ms; then a sleep. */
static pid_t start_process(long wait_ms)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (wait_ms && vfork() == 0) {
        pause_ms(wait_ms);
        _exit(0);
    }
    for (;;)
        (void)pause();
}

static void end_process(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    while (waitpid(-1, NULL, 0) > 0) /* and the tools */
        ;
}

static void examine(pid_t pid)
{
    char path[32] = "/proc/self/exe";
    struct stack_tools tools = {.paths = {[STACK_TOOL_EU_STACK] = path}};
    struct stack_job job = {.pid = pid, .tool = STACK_TOOL_EU_STACK};

    stack_tools_run(&tools, &job, 1, ATTACHED_MS * UINT64_C(1000000));
    assert_true(job.is_late);
    free(job.text);
}

static void a_process_goes_on_when_its_tool_is_killed(void **state)
{
    pid_t pid = start_process(0);

    await_state(pid, 'S');
    for (int i = 0; i < 3; i++) {
        examine(pid);
        await_state(pid, 'S');
    }
    end_process(pid);
    (void)state;
}

static void a_process_that_was_stopped_stays_so(void **state)
{
    pid_t pid = start_process(0);

    assert_int_equal(kill(pid, SIGSTOP), 0);
    await_state(pid, 'T');
    examine(pid);
    pause_ms(ATTACHED_MS);
    assert_int_equal(real_state(pid), 'T');
    end_process(pid);
    (void)state;
}

/* The signal of the tool is pending when the tool has ended: it stopped the process when its wait was over. */
static void a_process_that_waited_for_a_disk_goes_on_behind_that(void **state)
{
    pid_t pid = start_process(1000);

    await_state(pid, 'D');
    examine(pid);
    assert_int_equal(real_state(pid), 'D');
    await_state(pid, 'S');
    pause_ms(ATTACHED_MS);
    assert_int_equal(real_state(pid), 'S');
    end_process(pid);
    (void)state;
}

static void what_a_debugger_traces_is_left_alone(void **state)
{
    pid_t pid = start_process(0);
    struct examined e;
    int status;

    await_state(pid, 'S');
    examined_begin(&e, pid);
    assert_int_equal(ptrace(PTRACE_ATTACH, pid, NULL, NULL), 0);
    assert_true(examined_continue(&e));
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    assert_int_equal(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
    end_process(pid);
    (void)state;
}

/* Ctrl-Z: crun itself stops in a moment, and continues all of them later. */
static void nothing_is_continued_while_the_workers_are_suspended(void **state)
{
    pid_t pid = start_process(0);
    struct examined e;

    await_state(pid, 'S');
    examined_begin(&e, pid);
    examined_suspend(true);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    await_state(pid, 'T');
    assert_false(examined_continue(&e));
    pause_ms(ATTACHED_MS);
    assert_int_equal(real_state(pid), 'T');
    examined_suspend(false);
    assert_true(examined_continue(&e));
    await_state(pid, 'S');
    end_process(pid);
    (void)state;
}

static void another_process_with_the_number_is_not_continued(void **state)
{
    pid_t pid = start_process(0);
    struct examined e;

    await_state(pid, 'S');
    examined_begin(&e, pid);
    e.start_ticks--;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    await_state(pid, 'T');
    assert_true(examined_continue(&e));
    pause_ms(ATTACHED_MS);
    assert_int_equal(real_state(pid), 'T');
    end_process(pid);
    (void)state;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tool_that_was_late_has_ended),
        cmocka_unit_test(a_tool_that_cannot_be_waited_for_is_left),
        cmocka_unit_test(a_tool_that_prints_much_ends_by_itself),
        cmocka_unit_test(each_tool_has_its_own_time),
        cmocka_unit_test(tools_end_when_they_are_cancelled),
        cmocka_unit_test(a_process_goes_on_when_its_tool_is_killed),
        cmocka_unit_test(a_process_that_was_stopped_stays_so),
        cmocka_unit_test(a_process_that_waited_for_a_disk_goes_on_behind_that),
        cmocka_unit_test(what_a_debugger_traces_is_left_alone),
        cmocka_unit_test(nothing_is_continued_while_the_workers_are_suspended),
        cmocka_unit_test(another_process_with_the_number_is_not_continued),
    };

    if (argc == 3 && strcmp(argv[1], "-p") == 0)
        return attach_and_wait(argv[2]);

    return cmocka_run_group_tests(tests, NULL, NULL);
}
