/*
 * The owner of the other end of a connection, for both families and for IPv4 clients of a socket of IPv6; of one that
 * root has closed there is none. That another user is found needs root: tests/integration/test_store_owner.py.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/server/client_owner_os.h"

#include "tests/support/c/cmocka_fixed.h"

struct pair {
    int listener, client, accepted;
};

static int open_listener(const char *host, struct sockaddr_storage *at, socklen_t *size)
{
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at;
    struct sockaddr_in *v4 = (struct sockaddr_in *)at;
    bool is_v6 = strchr(host, ':');
    int fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);

    memset(at, 0, sizeof(*at));
    at->ss_family = is_v6 ? AF_INET6 : AF_INET;
    *size = is_v6 ? sizeof(*v6) : sizeof(*v4);
    assert_int_equal(inet_pton(at->ss_family, host, is_v6 ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr),
                     1);
    if (fd < 0 || bind(fd, (struct sockaddr *)at, *size) < 0)
        return -1;
    assert_return_code(listen(fd, 1), 0);
    assert_return_code(getsockname(fd, (struct sockaddr *)at, size), 0);
    return fd;
}

/* False where this machine has no IPv6. */
static bool connect_pair(struct pair *p, const char *listener, const char *client)
{
    struct sockaddr_storage at;
    struct sockaddr_in v4;
    socklen_t size;

    p->listener = open_listener(listener, &at, &size);
    if (p->listener < 0)
        return false;
    if (!strchr(client, ':')) {
        v4 = (struct sockaddr_in){.sin_family = AF_INET,
                                  .sin_port = at.ss_family == AF_INET
                                                  ? ((struct sockaddr_in *)&at)->sin_port
                                                  : ((struct sockaddr_in6 *)&at)->sin6_port};
        assert_int_equal(inet_pton(AF_INET, client, &v4.sin_addr), 1);
        memcpy(&at, &v4, sizeof(v4));
        size = sizeof(v4);
    }
    p->client = socket(at.ss_family, SOCK_STREAM, 0);
    assert_return_code(p->client, 0);
    assert_return_code(connect(p->client, (struct sockaddr *)&at, size), 0);
    p->accepted = accept(p->listener, NULL, NULL);
    assert_return_code(p->accepted, 0);
    return true;
}

static void close_pair(struct pair *p)
{
    (void)close(p->accepted);
    (void)close(p->client);
    (void)close(p->listener);
}

static void open_diag(int *ret)
{
    *ret = client_owner_open();
    if (*ret < 0) {
        print_message("the kernel has no socket diagnosis: %s\n", strerror(-*ret));
        skip();
    }
}

static void owner_is_found(void **state)
{
    static const char *const ends[][2] = {{"127.0.0.1", "127.0.0.1"}, {"::1", "::1"}, {"::", "127.0.0.1"}};
    int diag;

    open_diag(&diag);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct pair p;
        uid_t uid = (uid_t)-1;
        if (!connect_pair(&p, ends[i][0], ends[i][1]))
            continue;
        assert_int_equal(client_owner_find(diag, p.accepted, &uid), 0);
        assert_int_equal(uid, geteuid());
        close_pair(&p);
    }
    (void)close(diag);
}

static void closed_client_may_have_no_owner(void **state)
{
    struct pair p;
    uid_t uid;
    int diag;

    open_diag(&diag);
    assert_true(connect_pair(&p, "127.0.0.1", "127.0.0.1"));
    (void)close(p.client); /* the kernel keeps it: the other end is open */
    int r = client_owner_find(diag, p.accepted, &uid);
    if (r != -ENOTCONN) {
        assert_int_equal(r, 0);
        assert_int_not_equal(geteuid(), 0); /* root cannot be told from what the kernel has forgotten */
        assert_int_equal(uid, geteuid());
    }
    p.client = -1;
    close_pair(&p);
    (void)close(diag);
}

static void reset_client_has_no_owner(void **state)
{
    struct linger at_once = {.l_onoff = 1};
    struct pair p;
    uid_t uid;
    int diag;

    open_diag(&diag);
    assert_true(connect_pair(&p, "127.0.0.1", "127.0.0.1"));
    assert_return_code(setsockopt(p.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    (void)close(p.client);
    assert_true(client_owner_find(diag, p.accepted, &uid) < 0);
    p.client = -1;
    close_pair(&p);
    (void)close(diag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owner_is_found),
        cmocka_unit_test(closed_client_may_have_no_owner),
        cmocka_unit_test(reset_client_has_no_owner),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
