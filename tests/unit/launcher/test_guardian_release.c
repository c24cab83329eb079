/* The order that crun sends when it is ended by a signal without a handler: also over a link that is full of orders. */

#include "launcher/supervise/guardian_release_os.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher/supervise/guardian_os.h"

#include "tests/support/c/cmocka_fixed.h"

static int link_fds[2];

static int set_up_link(void **state)
{
    return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link_fds);
}

static int tear_down_link(void **state)
{
    (void)close(link_fds[0]);
    (void)close(link_fds[1]);
    return 0;
}

static void fill_link(void)
{
    const struct guardian_order order = {.kind = GUARDIAN_LEASE};

    while (send(link_fds[0], &order, sizeof(order), MSG_DONTWAIT) >= 0)
        ;
    assert_int_equal(errno, EAGAIN);
}

static pid_t start_ending_process(void)
{
    sigset_t none;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    (void)sigemptyset(&none);
    guardian_release_on_signals(&none);
    guardian_release_set_link(link_fds[0]);
    (void)raise(SIGALRM);
    _exit(1);
}

static void assert_ended_by_the_signal(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGALRM);
}

static int count_releases(void)
{
    struct guardian_order order;
    int n = 0;

    while (recv(link_fds[1], &order, sizeof(order), MSG_DONTWAIT) == (ssize_t)sizeof(order))
        n += order.kind == GUARDIAN_RELEASE;
    return n;
}

static void the_order_is_sent(void **state)
{
    assert_ended_by_the_signal(start_ending_process());
    assert_int_equal(count_releases(), 1);
}

static void the_order_waits_for_room(void **state)
{
    const struct timespec pause = {.tv_nsec = 50000000};

    fill_link();
    pid_t pid = start_ending_process();
    (void)nanosleep(&pause, NULL);
    int n = count_releases();
    assert_ended_by_the_signal(pid);
    assert_int_equal(n + count_releases(), 1);
}

static void a_guardian_that_reads_nothing_is_not_awaited_for_ever(void **state)
{
    fill_link();
    assert_ended_by_the_signal(start_ending_process());
    assert_int_equal(count_releases(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_order_is_sent, set_up_link, tear_down_link),
        cmocka_unit_test_setup_teardown(the_order_waits_for_room, set_up_link, tear_down_link),
        cmocka_unit_test_setup_teardown(a_guardian_that_reads_nothing_is_not_awaited_for_ever, set_up_link,
                                        tear_down_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
