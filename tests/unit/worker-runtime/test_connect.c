/*
 * What a rank notes of one that it cannot connect to, in the memory that crun lends: whether the network or the rank is the reason.
 */

#include "worker-runtime/base/network_cut_os.h"
#include "worker-runtime/base/job_key_os.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/net/net_sock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/worker_memory.h"
#include "tests/support/c/cmocka_fixed.h"

enum { ATTEMPT_MS = 300, QUEUED_MAX = 4 };

/* Rank 0 of two, and an address at which rank 1 would listen. */
struct ranks {
    int state_fd, listen_fd, queued[QUEUED_MAX];
    struct net_peer peers[2];
    struct failure_detector *detector;
    struct net *net;
};

static struct worker_cut noted(const struct ranks *t)
{
    struct worker_cut cut = {0};

    assert_int_equal(pread(t->state_fd, &cut, sizeof(cut), WORKER_CUT_AT), sizeof(cut));
    return cut;
}

static void lend_memory(struct ranks *t)
{
    char number[16];

    t->state_fd = memfd_create("state", 0);
    assert_true(t->state_fd >= 0);
    assert_int_equal(ftruncate(t->state_fd, WORKER_MEMORY_PAGE), 0);
    (void)snprintf(number, sizeof(number), "%d", t->state_fd);
    assert_int_equal(setenv(WORKER_MEMORY_STATE_ENVIRONMENT, number, 1), 0);
}

/* A queue of one connection. */
static void listen_as_rank_1(struct ranks *t)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);

    t->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(t->listen_fd, (struct sockaddr *)&a, size), 0);
    assert_int_equal(listen(t->listen_fd, 0), 0);
    assert_int_equal(getsockname(t->listen_fd, (struct sockaddr *)&a, &size), 0);
    t->peers[1].port = ntohs(a.sin_port);
    (void)stpcpy(t->peers[1].address, "127.0.0.1");
}

/* With a full queue the kernel drops what asks for another connection, as a network does that is cut. */
static void fill_queue(struct ranks *t)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons(t->peers[1].port)};

    for (int i = 0; i < QUEUED_MAX; i++) {
        t->queued[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(t->queued[i] >= 0);
        (void)connect(t->queued[i], (struct sockaddr *)&a, sizeof(a)); /* the last ones in vain */
    }
}

static int set_up(void **state)
{
    static const uint8_t token[NET_TOKEN];
    struct ranks *t = calloc(1, sizeof(*t));
    struct job_key key = {0};

    assert_non_null(t);
    lend_memory(t);
    listen_as_rank_1(t);
    for (int i = 0; i < QUEUED_MAX; i++)
        t->queued[i] = -1;
    assert_int_equal(failure_detector_create(-1, 0, 2, &t->detector), 0);
    assert_int_equal(net_create("127.0.0.1", 0, 2, t->detector, &t->net), 0);
    t->peers[0] = *net_self(t->net);
    assert_int_equal(net_start(t->net, t->peers, token, &key), 0);
    *state = t;
    return 0;
}

static int tear_down(void **state)
{
    struct ranks *t = *state;

    net_destroy(t->net);
    failure_detector_destroy(t->detector);
    for (int i = 0; i < QUEUED_MAX; i++)
        if (t->queued[i] >= 0)
            (void)close(t->queued[i]);
    if (t->listen_fd >= 0)
        (void)close(t->listen_fd);
    (void)close(t->state_fd);
    (void)unsetenv(WORKER_MEMORY_STATE_ENVIRONMENT);
    free(t);
    return 0;
}

static void cannot_connect(struct ranks *t)
{
    const struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = ATTEMPT_MS};
    struct net_link *link;

    assert_int_equal(net_connect(t->net, &wait, (struct net_hello){.purpose = NET_CONTROL}, 1, &link),
                     CRW_E_PEER);
}

static void close_listener(struct ranks *t)
{
    assert_int_equal(close(t->listen_fd), 0);
    t->listen_fd = -1;
}

static void a_rank_that_does_not_answer_is_noted(void **state)
{
    struct ranks *t = *state;

    fill_queue(t);
    cannot_connect(t);
    assert_int_equal(noted(t).from, 2);
    assert_int_equal(noted(t).pid, getpid());
}

static void a_rank_that_refuses_is_not(void **state)
{
    struct ranks *t = *state;

    close_listener(t);
    cannot_connect(t);
    assert_int_equal(noted(t).from, 0);
}

static void an_answer_withdraws_the_note(void **state)
{
    struct ranks *t = *state;

    fill_queue(t);
    cannot_connect(t);
    assert_int_equal(noted(t).from, 2);
    close_listener(t);
    cannot_connect(t);
    assert_int_equal(noted(t).from, 0);
}

static void the_first_rank_is_kept(void **state)
{
    struct ranks *t = *state;

    network_cut_note(6);
    network_cut_note(3);
    network_cut_withdraw(3);
    assert_int_equal(noted(t).from, 7);
    network_cut_withdraw(6);
    assert_int_equal(noted(t).from, 0);
    network_cut_note(3);
    assert_int_equal(noted(t).from, 4);
}

static void a_note_of_an_earlier_process_is_replaced(void **state)
{
    const struct worker_cut earlier = {.from = 7, .pid = (uint32_t)getpid() + 1};
    struct ranks *t = *state;

    assert_int_equal(pwrite(t->state_fd, &earlier, sizeof(earlier), WORKER_CUT_AT), sizeof(earlier));
    network_cut_withdraw(6);
    assert_int_equal(noted(t).from, 7);
    network_cut_note(3);
    assert_int_equal(noted(t).from, 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_rank_that_does_not_answer_is_noted),
        TEST(a_rank_that_refuses_is_not),
        TEST(an_answer_withdraws_the_note),
        TEST(the_first_rank_is_kept),
        TEST(a_note_of_an_earlier_process_is_replaced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
