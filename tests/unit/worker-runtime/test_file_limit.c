/* At the limit of file size calls fail; the signal that the kernel sends reaches nobody, and others are left alone. */

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "worker-runtime/base/file_limit_os.h"

#include "tests/support/c/cmocka_fixed.h"

enum { LIMIT = 8192 };

static int limited_file(void)
{
    struct rlimit limit;
    int fd = memfd_create("limited", MFD_CLOEXEC);

    assert_true(fd >= 0 && getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = LIMIT;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    return fd;
}

static bool is_signal_pending(void)
{
    sigset_t set;

    return sigpending(&set) == 0 && sigismember(&set, SIGXFSZ) == 1;
}

static bool is_signal_blocked(void)
{
    sigset_t set;

    return pthread_sigmask(SIG_BLOCK, NULL, &set) == 0 && sigismember(&set, SIGXFSZ) == 1;
}

static void test_each_call_at_the_limit(void **state)
{
    static const char bytes[LIMIT];
    int fd = limited_file();

    assert_int_equal(file_limit_allocate(fd, 0, LIMIT + 1), -EFBIG);
    assert_int_equal(file_limit_resize(fd, LIMIT + 1), -EFBIG);
    assert_int_equal(file_limit_allocate(fd, 0, LIMIT), 0);
    assert_int_equal(file_limit_resize(fd, 0), 0);
    assert_int_equal(file_limit_write(fd, bytes, LIMIT - 1), LIMIT - 1);
    assert_int_equal(file_limit_write(fd, bytes, LIMIT), 1); /* what fits */
    assert_int_equal(file_limit_write(fd, bytes, 1), -EFBIG);
    assert_false(is_signal_pending() || is_signal_blocked());
    close(fd);
}

static void test_program_that_ignores_the_signal(void **state)
{
    int fd = limited_file();

    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(file_limit_resize(fd, LIMIT + 1), -EFBIG);
    assert_true(signal(SIGXFSZ, SIG_DFL) == SIG_IGN); /* as the program had it */
    close(fd);
}

static void test_signal_that_was_pending_stays(void **state)
{
    int fd = limited_file();
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    raise(SIGXFSZ);
    assert_int_equal(file_limit_resize(fd, LIMIT + 1), -EFBIG);
    assert_true(is_signal_pending() && is_signal_blocked());
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR); /* discards it */
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_call_at_the_limit),
        cmocka_unit_test(test_program_that_ignores_the_signal),
        cmocka_unit_test(test_signal_that_was_pending_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
