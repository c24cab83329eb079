/*
 * The threads that send requests to etcd, against small HTTP servers of this test: which member is asked, what goes on to the
 * next one and what must not, logins, answers without an end.
 */

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/time.h"
#include "rendezvous/etcd/etcd_client_os.h"
#include "rendezvous/etcd/etcd_members.h"

#include "tests/support/c/cmocka_fixed.h"

enum { TEXT_MAX = 8192, CONNECTIONS_MAX = 8 };

/* What a member does with a request. */
enum manner { ANSWER, HANG_UP, ANSWER_ONCE, STAY_SILENT, WANT_LOGIN, NEVER_END, WANT_NEW_LOGIN };

struct member {
    pthread_t thread, threads[CONNECTIONS_MAX];
    int fds[CONNECTIONS_MAX];
    size_t n_connections;
    int listener;
    uint16_t port;
    enum manner manner;
    const char *answer;
    atomic_int n_requests, n_logins;
    atomic_bool is_closing;
    char last[TEXT_MAX]; /* request */
};

#define HEADER "{\"header\":{\"revision\":\"3\"}"

static void send_text(int fd, const char *text)
{
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL); /* the client may have closed the connection */
}

static void send_answer(int fd, int status, const char *body)
{
    char head[200];

    (void)snprintf(head, sizeof(head), "HTTP/1.1 %d X\r\nContent-Length: %zu\r\n\r\n", status, strlen(body));
    send_text(fd, head);
    send_text(fd, body);
}

static void answer(struct member *m, int fd)
{
    bool is_login = strstr(m->last, "/v3/auth/authenticate") != NULL;

    m->n_requests++;
    m->n_logins += is_login;
    if (m->manner == WANT_LOGIN && is_login) {
        send_answer(fd, 200, HEADER ",\"token\":\"token.1\"}");
    } else if (m->manner == WANT_LOGIN && !strstr(m->last, "Authorization: token.1")) {
        send_answer(fd, 401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}");
    } else if (m->manner == WANT_NEW_LOGIN && is_login) {
        send_answer(fd, 200, m->n_logins > 1 ? HEADER ",\"token\":\"new\"}" : HEADER ",\"token\":\"old\"}");
    } else if (m->manner == WANT_NEW_LOGIN && !strstr(m->last, "Authorization: new")) {
        send_answer(fd, 400, "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}");
    } else if (m->manner == NEVER_END) {
        send_text(fd, "HTTP/1.1 200 OK\r\n\r\n{");
        for (int i = 0; i < 4000 && !m->is_closing && send(fd, m->last, sizeof(m->last), MSG_NOSIGNAL) > 0;
             i++)
            ;
    } else if (m->manner == ANSWER || m->manner == WANT_LOGIN || m->manner == WANT_NEW_LOGIN ||
               (m->manner == ANSWER_ONCE && m->n_requests == 1)) {
        send_answer(fd, 200, m->answer);
    }
}

/* One request: head and body. */
static bool receive_request(struct member *m, int fd)
{
    size_t n = 0;
    const char *body, *length;

    for (;;) {
        ssize_t got = read(fd, m->last + n, sizeof(m->last) - 1 - n);

        if (got <= 0)
            return false;
        n += (size_t)got;
        m->last[n] = '\0';
        body = strstr(m->last, "\r\n\r\n");
        length = strstr(m->last, "Content-Length: ");
        if (body && length && strlen(body + 4) >= (size_t)atoi(length + 16))
            return true;
    }
}

struct connection {
    struct member *member;
    int fd;
};

static void *serve(void *data)
{
    struct connection c = *(struct connection *)data;
    struct member *m = c.member;

    free(data);
    while (receive_request(m, c.fd)) {
        answer(m, c.fd);
        while (m->manner == STAY_SILENT && !m->is_closing)
            (void)usleep(1000);
        if (m->manner == HANG_UP || m->manner == STAY_SILENT || m->manner == NEVER_END ||
            (m->manner == ANSWER_ONCE && m->n_requests > 1))
            break;
    }
    (void)shutdown(c.fd, SHUT_RDWR);
    return NULL;
}

static void *accept_all(void *data)
{
    struct member *m = data;
    int fd;

    while (m->n_connections < CONNECTIONS_MAX && (fd = accept(m->listener, NULL, NULL)) >= 0) {
        struct connection *c = malloc(sizeof(*c));

        *c = (struct connection){.member = m, .fd = fd};
        m->fds[m->n_connections] = fd;
        if (pthread_create(&m->threads[m->n_connections++], NULL, serve, c) != 0)
            abort();
    }
    return NULL;
}

static void member_open(struct member *m, enum manner manner, const char *text)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);

    *m = (struct member){.manner = manner, .answer = text, .listener = socket(AF_INET, SOCK_STREAM, 0)};
    assert_int_equal(bind(m->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(m->listener, (struct sockaddr *)&at, &n), 0);
    m->port = ntohs(at.sin_port);
    if (text) /* else nothing listens there */
        assert_int_equal(listen(m->listener, 8), 0);
    if (text)
        assert_int_equal(pthread_create(&m->thread, NULL, accept_all, m), 0);
}

static void member_close(struct member *m)
{
    m->is_closing = true;
    (void)shutdown(m->listener, SHUT_RDWR);
    if (m->answer)
        (void)pthread_join(m->thread, NULL);
    for (size_t i = 0; i < m->n_connections; i++) {
        (void)shutdown(m->fds[i], SHUT_RDWR);
        (void)pthread_join(m->threads[i], NULL);
        (void)close(m->fds[i]);
    }
    (void)close(m->listener);
}

/* A client of these members, and one answer at a time. */
struct world {
    struct etcd_client *client;
    struct member members[3];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool answered;
};

static void on_answered(void *data)
{
    struct world *w = data;

    (void)pthread_mutex_lock(&w->lock);
    w->answered = true;
    (void)pthread_cond_signal(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

static void world_open(struct world *w, size_t n, const struct etcd_access *access)
{
    struct etcd_client_config config = {.answered = on_answered, .data = w};
    const char *why = "";

    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    if (access)
        config.access = *access;
    config.url.n_endpoints = n;
    for (size_t i = 0; i < n; i++)
        (void)snprintf(config.url.endpoints[i], ETCD_HOST_SIZE, "127.0.0.1:%u", w->members[i].port);
    if (etcd_client_create(&w->client, &config, &why) != 0)
        fail_msg("no client: %s", why);
}

static void world_close(struct world *w, size_t n)
{
    etcd_client_destroy(w->client);
    for (size_t i = 0; i < n; i++)
        member_close(&w->members[i]);
}

static enum etcd_outcome ask(struct world *w, enum etcd_kind kind)
{
    struct etcd_request request = {.kind = kind, .key = "/a", .lease = 1, .ttl_s = 2};
    struct etcd_reply reply = {0};
    enum etcd_outcome outcome;

    w->answered = false;
    etcd_client_send(w->client, ETCD_LANE_WORK, &request);
    (void)pthread_mutex_lock(&w->lock);
    while (!w->answered)
        (void)pthread_cond_wait(&w->changed, &w->lock);
    (void)pthread_mutex_unlock(&w->lock);
    assert_true(etcd_client_take(w->client, ETCD_LANE_WORK, &reply));
    assert_false(etcd_client_take(w->client, ETCD_LANE_WORK, &reply));
    outcome = reply.outcome;
    etcd_reply_finish(&reply);
    return outcome;
}

static void test_the_next_member_is_asked(void **state)
{
    struct world w = {0};

    member_open(&w.members[0], ANSWER, NULL);
    member_open(&w.members[1], ANSWER, HEADER ",\"succeeded\":true}");
    world_open(&w, 2, NULL);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_OK); /* nothing was sent to the first one */
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_OK);
    assert_int_equal(w.members[1].n_requests, 2);
    world_close(&w, 2);
}

static void test_a_write_is_sent_once(void **state)
{
    struct world w = {0};

    member_open(&w.members[0], HANG_UP, "");
    member_open(&w.members[1], ANSWER, HEADER "}");
    world_open(&w, 2, NULL);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_UNKNOWN);
    assert_int_equal(w.members[1].n_requests, 0);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_OK); /* the next one goes elsewhere */
    assert_int_equal(w.members[1].n_requests, 1);
    world_close(&w, 2);
}

/* A library that sends a request again by itself when a connection breaks that it had used before. */
static void test_a_write_is_sent_once_on_an_old_connection(void **state)
{
    struct world w = {0};

    member_open(&w.members[0], ANSWER_ONCE, HEADER "}");
    world_open(&w, 1, NULL);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_OK);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_UNKNOWN);
    assert_int_equal(w.members[0].n_requests, 2);
    world_close(&w, 1);
}

static void test_a_read_goes_on(void **state)
{
    struct world w = {0};
    uint64_t began_ns = now_ns();

    member_open(&w.members[0], HANG_UP, "");
    member_open(&w.members[1], STAY_SILENT, "");
    member_open(&w.members[2], ANSWER, HEADER "}");
    world_open(&w, 3, NULL);
    assert_int_equal(ask(&w, ETCD_RANGE), ETCD_OK);
    assert_true(now_ns() - began_ns < ETCD_ALL_MS * UINT64_C(1000000) + UINT64_C(1000000000));
    assert_int_equal(w.members[1].n_requests, 1);
    world_close(&w, 3);
}

static void test_silence_has_an_end(void **state)
{
    struct world w = {0};
    uint64_t began_ns = now_ns();

    member_open(&w.members[0], STAY_SILENT, "");
    world_open(&w, 1, NULL);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_UNKNOWN);
    assert_true(now_ns() - began_ns >= (ETCD_ALL_MS - 100) * UINT64_C(1000000));
    world_close(&w, 1);
}

static void test_no_member_is_there(void **state)
{
    struct world w = {0};

    member_open(&w.members[0], ANSWER, NULL);
    member_open(&w.members[1], ANSWER, NULL);
    world_open(&w, 2, NULL);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_NOT_SENT);
    assert_int_equal(ask(&w, ETCD_RANGE), ETCD_NOT_SENT);
    world_close(&w, 2);
}

static void test_an_answer_has_a_bound(void **state)
{
    struct world w = {0};

    member_open(&w.members[0], NEVER_END, "");
    world_open(&w, 1, NULL);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_UNKNOWN);
    world_close(&w, 1);
}

static void test_login(void **state)
{
    const struct etcd_access access = {.user = "crund", .password = "secret"};
    struct world w = {0};

    member_open(&w.members[0], WANT_LOGIN, HEADER "}");
    world_open(&w, 1, &access);
    assert_int_equal(ask(&w, ETCD_RANGE), ETCD_OK);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_OK);
    assert_int_equal(w.members[0].n_logins, 1);
    assert_int_equal(w.members[0].n_requests, 3);
    assert_non_null(strstr(w.members[0].last, "POST /v3/kv/txn"));
    world_close(&w, 1);
}

/* A user or role was changed after the login. */
static void test_a_login_of_an_older_revision(void **state)
{
    const struct etcd_access access = {.user = "crund", .password = "secret"};
    struct world w = {0};

    member_open(&w.members[0], WANT_NEW_LOGIN, HEADER "}");
    world_open(&w, 1, &access);
    assert_int_equal(ask(&w, ETCD_TXN), ETCD_OK);
    assert_int_equal(w.members[0].n_logins, 2);
    world_close(&w, 1);
}

static void test_login_is_missing(void **state)
{
    struct world w = {0};

    member_open(&w.members[0], WANT_LOGIN, HEADER "}");
    world_open(&w, 1, NULL);
    assert_int_equal(ask(&w, ETCD_RANGE), ETCD_REFUSED);
    world_close(&w, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_next_member_is_asked),
        cmocka_unit_test(test_a_write_is_sent_once),
        cmocka_unit_test(test_a_write_is_sent_once_on_an_old_connection),
        cmocka_unit_test(test_a_read_goes_on),
        cmocka_unit_test(test_silence_has_an_end),
        cmocka_unit_test(test_no_member_is_there),
        cmocka_unit_test(test_an_answer_has_a_bound),
        cmocka_unit_test(test_login),
        cmocka_unit_test(test_a_login_of_an_older_revision),
        cmocka_unit_test(test_login_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
