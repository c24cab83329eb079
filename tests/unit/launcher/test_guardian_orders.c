/*
 * The order to start a worker, in one record or with a memory file, at the guardian's limit of descriptors: the kernel then leaves out
 * those that do not fit, and a worker without one of them must not be started.
 */

#include "launcher/supervise/guardian_orders_os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/supervise/death_notice_sock.h"

#include "tests/support/c/cmocka_fixed.h"

enum {
    N_DESCRIPTORS = 5,
    BIG = 300000
}; /* three for input and output, notices, state; and perhaps a memory file */

static int link_fds[2];
static struct rlimit limit_before;

static int set_up_link(void **state)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link_fds), 0);
    return getrlimit(RLIMIT_NOFILE, &limit_before);
}

static int tear_down_link(void **state)
{
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit_before), 0);
    (void)close(link_fds[0]);
    (void)close(link_fds[1]);
    return 0;
}

static void send_order(bool for_zygote)
{
    char name[] = "worker", argument[] = "argument", rank[] = "RANK=1";
    char *argv[] = {name, argument, NULL}, *environment[] = {rank, NULL};
    const struct worker_start start = {.file = "/bin/worker",
                                       .argv = argv,
                                       .environment = environment,
                                       .fds = {0, 1, 2, link_fds[0], 0, -1, -1, -1}};

    assert_int_equal(guardian_send_start(link_fds[0], 1, &start, for_zygote), 0);
}

/* Only so many more descriptors can be opened. */
static void leave_room_for(int n)
{
    struct rlimit limit = limit_before;
    int taken[N_DESCRIPTORS + 2];

    for (int i = 0; i <= n; i++)
        taken[i] = fcntl(0, F_DUPFD_CLOEXEC, 0);
    assert_true(taken[n] > 2);
    limit.rlim_cur = (rlim_t)taken[n];
    for (int i = 0; i <= n; i++)
        (void)close(taken[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static int receive_error(struct ordered_start *r)
{
    struct guardian_order order;

    assert_true(guardian_receive_order(link_fds[1], &order, r) >= (ssize_t)sizeof(order));
    assert_int_equal(order.kind, GUARDIAN_START);
    assert_int_equal(order.worker, 1);
    return order.error;
}

static void check_arrival(bool for_zygote)
{
    struct ordered_start r;

    send_order(for_zygote);
    leave_room_for(N_DESCRIPTORS + for_zygote);
    assert_int_equal(receive_error(&r), 0);
    assert_string_equal(r.start.file, "/bin/worker");
    assert_string_equal(r.start.argv[1], "argument");
    assert_string_equal(r.start.environment[0], "RANK=1");
    assert_true(r.start.fds[2] > 2 && r.start.fds[SPAWN_NOTICE_FD] > 2 && r.start.fds[SPAWN_STATE_FD] > 2);
    assert_int_equal(r.start.fds[SPAWN_IMPORT_FD], -1);
    assert_int_equal(r.fd >= 0, for_zygote);
    ordered_start_finish(&r);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit_before), 0);
}

static void an_order_arrives_with_its_descriptors(void **state)
{
    check_arrival(false);
    check_arrival(true);
}

static void an_order_without_all_of_its_descriptors_is_one_that_failed(void **state)
{
    for (int for_zygote = 0; for_zygote < 2; for_zygote++)
        for (int n = 0; n < N_DESCRIPTORS + for_zygote; n++) {
            struct ordered_start r;

            send_order(for_zygote);
            leave_room_for(n);
            assert_int_equal(receive_error(&r), EMFILE);
            ordered_start_finish(&r);
            assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit_before), 0);
        }
}

static void send_with_variable(char *variable, size_t size)
{
    char name[] = "worker", *argv[] = {name, NULL}, *environment[] = {variable, NULL};
    const struct worker_start start = {.file = "/bin/worker",
                                       .argv = argv,
                                       .environment = environment,
                                       .fds = {0, -1, -1, -1, -1, -1, -1, -1}};
    struct ordered_start r;

    memset(variable, 'x', size - 1);
    variable[size - 1] = '\0';
    assert_int_equal(guardian_send_start(link_fds[0], 1, &start, false), 0);
    assert_int_equal(receive_error(&r), 0);
    assert_string_equal(r.start.environment[0], variable);
    assert_int_equal(r.fd >= 0, size == BIG);
    ordered_start_finish(&r);
}

static void an_environment_may_be_larger_than_a_record(void **state)
{
    static char variable[BIG];

    send_with_variable(variable, BIG / 3);
    send_with_variable(variable, BIG);
}

/* The file is created and written, which no record is. */
static void a_record_needs_no_file_size(void **state)
{
    struct rlimit before, none = {.rlim_max = RLIM_INFINITY};
    struct ordered_start r;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    send_order(false);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(receive_error(&r), 0);
    ordered_start_finish(&r);
}

static void a_file_above_the_limit_of_file_size_is_too_large(void **state)
{
    static char variable[BIG];
    char name[] = "worker", *argv[] = {name, NULL}, *environment[] = {variable, NULL};
    const struct worker_start start = {.file = "/bin/worker",
                                       .argv = argv,
                                       .environment = environment,
                                       .fds = {0, -1, -1, -1, -1, -1, -1, -1}};
    struct rlimit before, small;

    memset(variable, 'x', BIG - 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int r = guardian_send_start(link_fds[0], 1, &start, false);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(r, -EFBIG);
}

static void a_begin_brings_its_notice(void **state)
{
    static const struct death_notice notice = {.size = 7};
    const struct death_notice *const sent[] = {&notice, NULL};

    for (int i = 0; i < 2; i++) {
        struct guardian_order order;
        struct ordered_start r;

        assert_int_equal(guardian_send_begin(link_fds[0], sent[i]), 0);
        assert_true(guardian_receive_order(link_fds[1], &order, &r) > 0);
        assert_int_equal(order.kind, GUARDIAN_BEGIN);
        assert_int_equal(r.notice ? r.notice->size : 0, sent[i] ? 7 : 0);
        ordered_start_finish(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_order_arrives_with_its_descriptors, set_up_link, tear_down_link),
        cmocka_unit_test_setup_teardown(an_order_without_all_of_its_descriptors_is_one_that_failed,
                                        set_up_link, tear_down_link),
        cmocka_unit_test_setup_teardown(an_environment_may_be_larger_than_a_record, set_up_link,
                                        tear_down_link),
        cmocka_unit_test_setup_teardown(a_record_needs_no_file_size, set_up_link, tear_down_link),
        cmocka_unit_test_setup_teardown(a_file_above_the_limit_of_file_size_is_too_large, set_up_link,
                                        tear_down_link),
        cmocka_unit_test_setup_teardown(a_begin_brings_its_notice, set_up_link, tear_down_link),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
