/*
 * The blocking client against a server that follows a script: what it sends, and how it leaves waits that
 * end in time, by interruption, or with the connection.
 *
 * The server runs in a thread. It checks what it hears and reports at the end; only the main thread asserts.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "proto/client_sock.h"

#include "tests/support/c/cmocka_fixed.h"
#include "tests/support/c/store_calls.h"

#define SPAN(text) ((struct wire_span){(const uint8_t *)(text), sizeof(text) - 1})

#define ONE "\x01\0\0\0\0\0\0\0"
#define TWO "\x02\0\0\0\0\0\0\0"
#define NONE "\0\0\0\0\0\0\0\0"
#define KEY TWO "/k"
#define WAIT_KEY "\x06" ONE KEY
#define GET_KEY "\x03" KEY
#define ADD_KEY "\x04" KEY ONE

/* ------------------------------------------------------------------ the scripted server */

enum act {
    FINISH,      /* the client has to be gone now: end of stream */
    HEAR,        /* exactly these bytes come next */
    SAY,         /* these bytes */
    SHAKE_HANDS, /* VALIDATE, PING, and the nonce back */
    NEXT,        /* close, and accept the next connection */
    LEAVE,       /* close, and accept no more */
    PAUSE,       /* n milliseconds */
    HOLD,        /* until the test says go_on() */
    SWALLOW,     /* n bytes, whatever they are */
};

struct act_step {
    enum act act;
    const char *text;
    size_t n;
};

/* clang-format off */
#define hear(t) {HEAR, (t), sizeof(t) - 1}
#define say(t) {SAY, (t), sizeof(t) - 1}
#define shake_hands {SHAKE_HANDS, NULL, 0}
#define next {NEXT, NULL, 0}
#define leave {LEAVE, NULL, 0}
#define pause_ms(n) {PAUSE, NULL, (n)}
#define hold {HOLD, NULL, 0}
#define swallow(n) {SWALLOW, NULL, (n)}
#define finish {FINISH, NULL, 0}
/* clang-format on */

/* For what should happen soon, on a machine that is busy with something else. */
enum { PATIENCE_MS = 60000 };

struct server {
    pthread_t thread;
    int listener;
    int gate[2]; /* a byte in it ends a HOLD */
    uint16_t port;
    const struct act_step *script;
    char complaint[200]; /* "" while all is as it should be */
};

static void complain(struct server *s, const struct act_step *step, const char *what)
{
    (void)snprintf(s->complaint, sizeof(s->complaint), "script step %td: %s", step - s->script + 1, what);
}

/* Bounded, so that a test that goes wrong ends. */
static bool receive_all(int fd, uint8_t *to, size_t n)
{
    for (size_t have = 0; have < n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t got = poll(&p, 1, PATIENCE_MS) > 0 ? recv(fd, to + have, n - have, 0) : -1;

        if (got <= 0)
            return false;
        have += (size_t)got;
    }
    return true;
}

static bool act_hear(int fd, const struct act_step *step)
{
    uint8_t heard[256];

    return receive_all(fd, heard, step->n) && memcmp(heard, step->text, step->n) == 0;
}

static bool act_shake_hands(int fd)
{
    uint8_t heard[10];

    return receive_all(fd, heard, sizeof(heard)) && memcmp(heard, "\x00\xce\xf7\x85\x3c\x0d", 6) == 0 &&
           send(fd, heard + 6, 4, MSG_NOSIGNAL) == 4;
}

static bool act_swallow(int fd, size_t n)
{
    _cleanup_free_ uint8_t *swallowed = malloc(n);

    return swallowed && receive_all(fd, swallowed, n);
}

static bool act_finish(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    uint8_t byte;

    return poll(&p, 1, PATIENCE_MS) > 0 && recv(fd, &byte, 1, 0) == 0;
}

static bool act_hold(const struct server *s)
{
    struct pollfd p = {.fd = s->gate[0], .events = POLLIN};
    char byte;

    return poll(&p, 1, PATIENCE_MS) > 0 && read(s->gate[0], &byte, 1) == 1;
}

/* Returns false when the script is over or went wrong. */
static bool run_step(struct server *s, const struct act_step *step, int fd)
{
    switch (step->act) {
    case HEAR:
        if (!act_hear(fd, step))
            complain(s, step, "heard something else");
        break;
    case SAY:
        if (send(fd, step->text, step->n, MSG_NOSIGNAL) != (ssize_t)step->n)
            complain(s, step, "cannot send");
        break;
    case SHAKE_HANDS:
        if (!act_shake_hands(fd))
            complain(s, step, "no VALIDATE and PING");
        break;
    case PAUSE:
        (void)poll(NULL, 0, (int)step->n);
        break;
    case HOLD:
        if (!act_hold(s))
            complain(s, step, "the test did not go on");
        break;
    case SWALLOW:
        if (!act_swallow(fd, step->n))
            complain(s, step, "too few bytes");
        break;
    case FINISH:
        if (!act_finish(fd))
            complain(s, step, "the client said more, or did not go");
        return false;
    case LEAVE:
    case NEXT:
        return false;
    }
    return s->complaint[0] == '\0';
}

static void *serve(void *data)
{
    struct server *s = data;
    const struct act_step *step = s->script;

    do {
        _cleanup_close_ int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);

        if (step->act == NEXT)
            step++;
        while (run_step(s, step, fd))
            step++;
    } while (step->act == NEXT && s->complaint[0] == '\0');
    return NULL;
}

static void start(struct server *s, const struct act_step *script)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);

    *s = (struct server){.script = script};
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->listener >= 0);
    assert_int_equal(bind(s->listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(s->listener, 8), 0);
    assert_int_equal(getsockname(s->listener, (struct sockaddr *)&address, &size), 0);
    s->port = ntohs(address.sin_port);
    assert_int_equal(pipe2(s->gate, O_CLOEXEC), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void go_on(struct server *s)
{
    assert_int_equal(write(s->gate[1], "", 1), 1);
}

/* The script went to its end as written. */
static void stop(struct server *s)
{
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    close(s->listener);
    close(s->gate[0]);
    close(s->gate[1]);
    assert_string_equal(s->complaint, "");
}

static void connect_to(struct client_sock *c, const struct server *s)
{
    client_sock_init(c);
    c->timeout_ms = PATIENCE_MS;
    assert_int_equal(client_sock_connect(c, "127.0.0.1", s->port, PATIENCE_MS), 0);
    assert_string_equal(client_sock_error(c), "");
}

static void assert_error(const struct client_sock *c, const char *part)
{
    if (!strstr(client_sock_error(c), part))
        fail_msg("\"%s\" is not in \"%s\"", part, client_sock_error(c));
}

static int elapsed_ms(int64_t since_ns)
{
    return (int)((sock_now_ns() - since_ns) / 1000000);
}

/* ------------------------------------------------------------------ connecting */

static void test_retries_until_a_store_answers(void **state)
{
    static const struct act_step script[] = {
        next, /* closed at once */
        swallow(10), say("HTTP"),
        next, /* not our nonce */
        swallow(10), say("no store here"),
        next, /* nor this */
        shake_hands, finish,
    };
    struct server s;
    struct client_sock c;

    start(&s, script);
    connect_to(&c, &s);
    client_sock_finish(&c);
    stop(&s);
}

static void test_nobody_listens(void **state)
{
    int64_t since = sock_now_ns();
    struct client_sock c;
    int64_t n;

    client_sock_init(&c);
    assert_int_equal(client_sock_connect(&c, "127.0.0.1", 1, 300), CLIENT_E_TIMEOUT);
    assert_true(elapsed_ms(since) < PATIENCE_MS / 2);
    assert_error(&c, "127.0.0.1:1");
    assert_error(&c, "Connection refused");
    assert_int_equal(store_call_num_keys(&c, &n), CLIENT_E_CLOSED);
    client_sock_finish(&c);
}

static void test_server_says_nothing(void **state)
{
    static const struct act_step script[] = {swallow(10), finish};
    int64_t since = sock_now_ns();
    struct server s;
    struct client_sock c;

    start(&s, script);
    client_sock_init(&c);
    assert_int_equal(client_sock_connect(&c, "127.0.0.1", s.port, 500), CLIENT_E_TIMEOUT);
    assert_in_range(elapsed_ms(since), 500, PATIENCE_MS / 2);
    assert_error(&c, "sent no reply");
    client_sock_finish(&c);
    stop(&s);
}

static void test_hosts_that_are_none(void **state)
{
    static const char *const hosts[] = {"a..b", "[::1]", "::g"}; /* none is asked of a name server */

    for (size_t i = 0; i < ARRAY_SIZE(hosts); i++) {
        struct client_sock c;

        client_sock_init(&c);
        assert_int_equal(client_sock_connect(&c, hosts[i], 1, 0), CLIENT_E_TIMEOUT);
        assert_error(&c, hosts[i]);
        client_sock_finish(&c);
    }
}

/* ------------------------------------------------------------------ operations on the wire */

static void test_operations(void **state)
{
    static const struct act_step script[] = {
        shake_hands,
        hear("\x04\x05\0\0\0\0\0\0\0init/" ONE),
        say(TWO),
        hear("\x01" KEY ONE "v"),
        hear(WAIT_KEY),
        say("\x00"),
        hear(GET_KEY),
        say("\x01"),
        pause_ms(20),
        say("\0\0\0\0\0\0\0v"),
        hear(ADD_KEY),
        say("\xff\xff\xff\xff\xff\xff\xff\xff"),
        hear("\x05" TWO KEY "\x01\0\0\0\0\0\0\0/"),
        say("\x01"),
        hear("\x02" KEY NONE ONE "d"),
        say(ONE "d"),
        hear("\x08" KEY),
        say(ONE),
        hear("\x09" KEY NONE),
        hear("\x06" ONE KEY),
        say("\x00"),
        hear("\x0a" ONE KEY),
        say(TWO "vw"),
        hear("\x0b" ONE KEY ONE "v"),
        hear("\x07"),
        say("\x03\0\0\0\0\0\0\0"),
        hear("\x11"),
        say("\x03\0\0\0\0\0\0\0" TWO "/a"
            "\x05\0\0\0\0\0\0\0init/" TWO "/b"),
        hear("\x0e" KEY ONE "q"),
        hear("\x10" KEY),
        say(ONE),
        hear("\x0f" KEY),
        say(ONE ONE "q"),
        hear("\x0f" KEY),
        say(NONE),
        hear("\x12" KEY TWO),
        say("\x00"),
        finish,
    };
    struct wire_span key = SPAN("k"), keys[] = {key, SPAN("")}, value = SPAN("v"), span, list;
    struct server s;
    struct client_sock c;
    int64_t number;
    bool flag;

    start(&s, script);
    connect_to(&c, &s);
    assert_int_equal(store_call_join(&c, &number), 0);
    assert_int_equal(number, 2);
    assert_int_equal(client_sock_set(&c, key, value), 0);
    assert_int_equal(client_sock_get(&c, key, PATIENCE_MS, &span), 0);
    assert_int_equal(span.size, 1);
    assert_int_equal(client_sock_add(&c, key, 1, &number), 0);
    assert_int_equal(number, -1);
    assert_int_equal(store_call_check(&c, keys, 2, &flag), 0);
    assert_false(flag);
    assert_int_equal(store_call_compare_set(&c, key, SPAN(""), SPAN("d"), &span), 0);
    assert_memory_equal(span.data, "d", 1);
    assert_int_equal(client_sock_delete(&c, key, &flag), 0);
    assert_true(flag);
    assert_int_equal(store_call_append(&c, key, SPAN("")), 0);
    assert_int_equal(store_call_multi_get(&c, keys, 1, PATIENCE_MS, &span), 0);
    assert_memory_equal(span.data, "vw", 2);
    assert_int_equal(store_call_multi_get(&c, keys, 0, PATIENCE_MS, NULL), 0); /* asks nothing */
    assert_int_equal(store_call_multi_set(&c, keys, &value, 1), 0);
    assert_int_equal(store_call_num_keys(&c, &number), 0);
    assert_int_equal(number, 3);
    assert_int_equal(store_call_list_keys(&c, &list), 0);
    assert_true(store_call_next_key(&list, &span));
    assert_memory_equal(span.data, "a", 1);
    assert_true(store_call_next_key(&list, &span));
    assert_memory_equal(span.data, "b", 1);
    assert_false(store_call_next_key(&list, &span));
    assert_int_equal(store_call_queue_push(&c, key, SPAN("q")), 0);
    assert_int_equal(store_call_queue_len(&c, key, &number), 0);
    assert_int_equal(store_call_queue_pop(&c, key, 0, &span), 0);
    assert_memory_equal(span.data, "q", 1);
    assert_int_equal(store_call_queue_pop(&c, key, 0, &span), STORE_CALL_EMPTY);
    assert_int_equal(store_call_barrier(&c, key, 2, PATIENCE_MS), 0);
    client_sock_finish(&c);
    stop(&s);
}

static void test_too_long_to_send(void **state)
{
    static const struct act_step script[] = {
        shake_hands, hear("\x08\x00\x20\0\0\0\0\0\0/"), swallow(8191), say(NONE), finish,
    };
    static const char long_key[8192];
    struct server s;
    struct client_sock c;
    bool flag;

    start(&s, script);
    connect_to(&c, &s);
    assert_int_equal(client_sock_set(&c, wire_span(long_key, 8192), SPAN("")), -EMSGSIZE);
    assert_error(&c, "8192 bytes");
    assert_int_equal(client_sock_set(&c, SPAN("k"), wire_span("", (8u << 20) + 1)), -EMSGSIZE);
    assert_error(&c, "8388609 bytes");
    /* Nothing of these was sent, and the longest key is. */
    assert_int_equal(client_sock_delete(&c, wire_span(long_key, 8191), &flag), 0);
    assert_false(flag);
    client_sock_finish(&c);
    stop(&s);
}

/* ------------------------------------------------------------------ time-outs */

static void test_wait_times_out_and_goes_on(void **state)
{
    static const struct act_step script[] = {
        shake_hands, hear(WAIT_KEY), hear("\x0c"), pause_ms(50), say("\x01"), hear(ADD_KEY), say(ONE), finish,
    };
    int64_t since, number;
    struct server s;
    struct client_sock c;
    struct wire_span key = SPAN("k");

    start(&s, script);
    connect_to(&c, &s);
    since = sock_now_ns();
    assert_int_equal(store_call_wait(&c, &key, 1, 100), CLIENT_E_TIMEOUT);
    assert_in_range(elapsed_ms(since), 100, PATIENCE_MS / 2);
    assert_error(&c, "no answer to WAIT of \"k\" within 100 ms");
    assert_int_equal(client_sock_add(&c, key, 1, &number), 0);
    assert_int_equal(number, 1);
    client_sock_finish(&c);
    stop(&s);
}

/* The release was under way when the time was over: still a time-out, and still in step. */
static void test_release_crosses_the_cancel(void **state)
{
    static const struct act_step script[] = {
        shake_hands, hear(WAIT_KEY "\x0c"), say("\x00\x01"), hear(ADD_KEY), say(ONE), hear(WAIT_KEY "\x0c"),
        say("\x00"), pause_ms(100),         say("\x01"),     hear(ADD_KEY), say(TWO), finish,
    };
    int64_t number;
    struct server s;
    struct client_sock c;
    struct wire_span span;

    start(&s, script);
    connect_to(&c, &s);
    assert_int_equal(client_sock_get(&c, SPAN("k"), 0, &span), CLIENT_E_TIMEOUT);
    assert_int_equal(client_sock_add(&c, SPAN("k"), 1, &number), 0);
    assert_int_equal(number, 1);
    assert_int_equal(client_sock_get(&c, SPAN("k"), 0, &span), CLIENT_E_TIMEOUT);
    assert_int_equal(client_sock_add(&c, SPAN("k"), 1, &number), 0);
    assert_int_equal(number, 2);
    client_sock_finish(&c);
    stop(&s);
}

static void test_silent_server_never_hangs_a_call(void **state)
{
    static const struct act_step script[] = {
        shake_hands, hear(ADD_KEY), hold, say(ONE), hear("\x07"), say(TWO), finish,
    };
    int64_t since, number = 0;
    struct server s;
    struct client_sock c;

    start(&s, script);
    connect_to(&c, &s);
    c.timeout_ms = 100;
    for (int i = 0; i < 2; i++) {
        since = sock_now_ns();
        assert_int_equal(client_sock_add(&c, SPAN("k"), 1, &number), CLIENT_E_TIMEOUT);
        assert_in_range(elapsed_ms(since), 100, PATIENCE_MS / 2);
    }
    /* The late reply is dropped; the second ADD was never sent. */
    go_on(&s);
    c.timeout_ms = PATIENCE_MS;
    assert_int_equal(store_call_num_keys(&c, &number), 0);
    assert_int_equal(number, 2);
    client_sock_finish(&c);
    stop(&s);
}

static void test_server_that_does_not_read(void **state)
{
    enum { SIZE = 8 << 20 };
    static const struct act_step script[] = {
        shake_hands, hold, swallow(1 + 10 + 8 + SIZE), hear(ADD_KEY), say(ONE), finish,
    };
    _cleanup_free_ uint8_t *big = calloc(1, SIZE);
    int64_t number;
    struct server s;
    struct client_sock c;

    start(&s, script);
    connect_to(&c, &s);
    c.timeout_ms = 100;
    assert_int_equal(client_sock_set(&c, SPAN("k"), wire_span(big, SIZE)), CLIENT_E_TIMEOUT);
    /* Half of the message is out: the rest goes first, or nothing would be in step any more. */
    go_on(&s);
    c.timeout_ms = PATIENCE_MS;
    assert_int_equal(client_sock_add(&c, SPAN("k"), 1, &number), 0);
    client_sock_finish(&c);
    stop(&s);
}

/* ------------------------------------------------------------------ interruption */

struct waker {
    pthread_t thread;
    int fds[2];
};

static void *wake(void *data)
{
    struct waker *w = data;

    (void)poll(NULL, 0, 50);
    close(w->fds[1]);
    return NULL;
}

static void start_waker(struct waker *w)
{
    assert_int_equal(pipe2(w->fds, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&w->thread, NULL, wake, w), 0);
}

static void stop_waker(struct waker *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    close(w->fds[0]);
}

static const struct act_step interrupted_script[] = {
    shake_hands, hear(WAIT_KEY "\x0c"), say("\x01"), hear(ADD_KEY), say(ONE), finish,
};

static void test_wake_fd_alone(void **state)
{
    int64_t since, number;
    struct server s;
    struct client_sock c;
    struct waker w;
    struct wire_span span;

    start(&s, interrupted_script);
    connect_to(&c, &s);
    start_waker(&w);
    c.wake_fd = w.fds[0];
    since = sock_now_ns();
    assert_int_equal(client_sock_get(&c, SPAN("k"), PATIENCE_MS, &span), CLIENT_E_INTERRUPTED);
    assert_true(elapsed_ms(since) < PATIENCE_MS / 2);
    assert_error(&c, "interrupted");
    c.wake_fd = -1;
    assert_int_equal(client_sock_add(&c, SPAN("k"), 1, &number), 0); /* still usable */
    client_sock_finish(&c);
    stop_waker(&w);
    stop(&s);
}

static void test_connecting_is_interrupted(void **state)
{
    struct client_sock c;
    struct waker w;
    int64_t since = sock_now_ns();

    client_sock_init(&c);
    start_waker(&w);
    c.wake_fd = w.fds[0]; /* between two attempts */
    assert_int_equal(client_sock_connect(&c, "127.0.0.1", 1, PATIENCE_MS), CLIENT_E_INTERRUPTED);
    assert_true(elapsed_ms(since) < PATIENCE_MS / 2);
    client_sock_finish(&c);
    stop_waker(&w);
}

/* ------------------------------------------------------------------ broken connections */

static void test_server_goes(void **state)
{
    static const struct act_step script[] = {shake_hands,   hear(WAIT_KEY), say("\x00"),
                                             hear(GET_KEY), say(TWO "x"),   leave};
    struct server s;
    struct client_sock c;
    struct wire_span span;

    start(&s, script);
    connect_to(&c, &s);
    assert_int_equal(client_sock_get(&c, SPAN("k"), PATIENCE_MS, &span), CLIENT_E_CLOSED);
    assert_error(&c, "connection lost in GET of \"k\"");
    assert_int_equal(client_sock_ping(&c), CLIENT_E_CLOSED);
    assert_error(&c, "there is no connection");
    client_sock_finish(&c);
    stop(&s);
}

static void test_server_talks_nonsense(void **state)
{
    static const struct {
        struct act_step steps[5];
        const char *why;
    } scripts[] = {
        {{shake_hands, hear(WAIT_KEY), say("\x02"), finish}, "unknown status"},
        {{shake_hands, hear(WAIT_KEY), say("\x01"), finish}, "cancelled wait without a CANCEL_WAIT"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(scripts); i++) {
        struct server s;
        struct client_sock c;
        struct wire_span key = SPAN("k");

        start(&s, scripts[i].steps);
        connect_to(&c, &s);
        assert_int_equal(store_call_wait(&c, &key, 1, PATIENCE_MS), CLIENT_E_PROTOCOL);
        assert_error(&c, scripts[i].why);
        assert_int_equal(store_call_wait(&c, &key, 1, PATIENCE_MS), CLIENT_E_CLOSED);
        client_sock_finish(&c);
        stop(&s);
    }
}

/* A byte that nobody asked for, behind a reply and after it: never the answer to the next request. */
static void test_server_talks_unasked(void **state)
{
    static const struct act_step behind[] = {shake_hands, hear(ADD_KEY), say(ONE "\x00"), finish};
    static const struct act_step after[] = {shake_hands, hear(ADD_KEY), say(ONE), hold, say("\x00"), finish};

    for (int i = 0; i < 2; i++) {
        struct server s;
        struct client_sock c;
        struct wire_span key = SPAN("k");
        int64_t number;

        start(&s, i == 0 ? behind : after);
        connect_to(&c, &s);
        assert_int_equal(client_sock_add(&c, key, 1, &number), 0);
        if (i == 1) {
            go_on(&s);
            assert_int_equal(poll(&(struct pollfd){.fd = c.fd, .events = POLLIN}, 1, PATIENCE_MS), 1);
        }
        assert_int_equal(store_call_wait(&c, &key, 1, PATIENCE_MS), CLIENT_E_PROTOCOL);
        assert_error(&c, "answer nothing");
        assert_int_equal(store_call_wait(&c, &key, 1, PATIENCE_MS), CLIENT_E_CLOSED);
        client_sock_finish(&c);
        stop(&s);
    }
}

/* ------------------------------------------------------------------ */

static int count_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* Each test leaves as many descriptors open as it found. */
static int remember_descriptors(void **state)
{
    static int n;

    n = count_descriptors();
    *state = &n;
    return 0;
}

static int compare_descriptors(void **state)
{
    assert_int_equal(count_descriptors(), *(int *)*state);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, remember_descriptors, compare_descriptors)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_retries_until_a_store_answers),
        TEST(test_nobody_listens),
        TEST(test_server_says_nothing),
        TEST(test_hosts_that_are_none),
        TEST(test_operations),
        TEST(test_too_long_to_send),
        TEST(test_wait_times_out_and_goes_on),
        TEST(test_release_crosses_the_cancel),
        TEST(test_silent_server_never_hangs_a_call),
        TEST(test_server_that_does_not_read),
        TEST(test_wake_fd_alone),
        TEST(test_connecting_is_interrupted),
        TEST(test_server_goes),
        TEST(test_server_talks_nonsense),
        TEST(test_server_talks_unasked),
    };

    return cmocka_run_group_tests_name("proto/client_sock", tests, NULL, NULL);
}
