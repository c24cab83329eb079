/*
 * Hostile clients beside well-behaved ones. The parent keeps good clients going and checks every answer; the
 * child attacks. Ends with one line of JSON; exit code 1 when a good client was hurt.
 *
 *     store_hostile MODE PORT PID COUNT [GOOD]
 *
 *     frames   COUNT broken messages: every operation x every length field x boundary values, then random
 * damage slow     COUNT clients that send one byte a second, half of them before VALIDATE deaf     COUNT
 * clients that ask for a large value again and again and never read
 *
 * PID is the server's, for its memory; 0: not looked at.
 */

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "proto/wire.h"
#include "tests/support/c/wire_messages.h"

enum { LATENCIES_MAX = 1 << 20, ADDRESSES = 64, BIG = 4 << 20, REPORT_S = 20, CLEAN_EVERY = 5000 };

static uint16_t port;
static pid_t server;

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "store_hostile: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static long resident_kib(void)
{
    char path[64];
    long pages = 0, all;
    FILE *f;

    (void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)server);
    f = server > 0 ? fopen(path, "re") : NULL;
    if (!f)
        return 0;
    if (fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    (void)fclose(f); /* only read */
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Closing sends a reset, so that no port stays taken; sources alternate for the same reason. */
static int connect_from(unsigned index)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct linger reset = {.l_onoff = 1};
    struct timeval limit = {.tv_sec = 60};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        die("socket");
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + index % ADDRESSES);
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0 ||
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)) < 0 ||
        bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0)
        die("preparing a socket");
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        die("connect");
    return fd;
}

static bool send_bytes(int fd, const void *data, size_t n, int flags)
{
    return send(fd, data, n, MSG_NOSIGNAL | flags) == (ssize_t)n;
}

static void greet(int fd)
{
    struct buf b = {0};

    if (wire_put_word(&b, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC) < 0)
        die("memory");
    if (!send_bytes(fd, buf_bytes(&b), buf_size(&b), 0))
        die("greeting");
    buf_finish(&b);
}

/* ---- good clients ---- */

struct good {
    int fd;
    struct {
        int32_t pid; /* so that a second run has counters of its own */
        uint32_t index;
    } id;
    int64_t count;
};

static uint64_t latencies[LATENCIES_MAX];
static size_t n_latencies;
static uint64_t n_good;

static void read_exactly(int fd, void *to, size_t n)
{
    uint8_t *p = to;

    while (n > 0) {
        ssize_t got = recv(fd, p, n, 0);

        if (got < 0 && errno == EINTR)
            continue; /* this process was stopped for a while */
        if (got <= 0)
            die("a good client was not answered");
        p += got;
        n -= (size_t)got;
    }
}

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    errno = EPROTO;
    die(what);
}

/* Counts its own counter, writes and reads its own key; every answer is known beforehand. */
static void talk(struct good *g)
{
    char key[32], value[32];
    struct wire_span k = wire_span(key, (size_t)snprintf(key, sizeof(key), "/good/%u", g->id.index));
    struct wire_span v = wire_span(value, (size_t)snprintf(value, sizeof(value), "%016" PRId64, g->count));
    struct wire_span counter = wire_span(&g->id, sizeof(g->id));
    uint8_t reply[8 + 8 + 16];
    uint64_t started = now_ns();
    struct buf b = {0};

    if (wire_put_key_amount(&b, WIRE_OP_ADD, counter, 1) < 0 ||
        wire_put_key_value(&b, WIRE_OP_SET, k, v) < 0 || wire_put_key(&b, WIRE_OP_GET, k) < 0)
        die("memory");
    require(send_bytes(g->fd, buf_bytes(&b), buf_size(&b), 0), "a good client was cut off");
    buf_finish(&b);
    read_exactly(g->fd, reply, sizeof(reply));
    require((int64_t)wire_load_u64(reply) == ++g->count, "a good client's counter is wrong");
    require(wire_load_u64(reply + 8) == v.size && memcmp(reply + 16, value, v.size) == 0,
            "a good client's value is wrong");
    if (n_latencies < LATENCIES_MAX)
        latencies[n_latencies++] = now_ns() - started;
    n_good += 3;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static double latency_ms(double share)
{
    return n_latencies ? (double)latencies[(size_t)((double)(n_latencies - 1) * share)] / 1e6 : 0;
}

static bool is_of_good(const uint8_t *key, size_t size)
{
    int32_t pid = getpid();

    return (size > 6 && memcmp(key, "/good/", 6) == 0) || (size == 8 && memcmp(key, &pid, sizeof(pid)) == 0);
}

static void send_all(int fd, const struct buf *b)
{
    for (size_t sent = 0; sent < buf_size(b);) {
        ssize_t n = send(fd, buf_bytes(b) + sent, buf_size(b) - sent, MSG_NOSIGNAL);

        require(n > 0, "a good client was cut off");
        sent += (size_t)n;
    }
}

/* Deletes the keys of others: some hostile messages were valid after all, and what they stored would count as
 * leaked. Returns how many there were. */
static uint64_t clean_up(int fd)
{
    struct buf b = {0};
    uint8_t word[8], *key = NULL;
    uint64_t n_keys, n_deleted = 0;

    if (wire_put_plain(&b, WIRE_OP_LIST_KEYS) < 0)
        die("memory");
    send_all(fd, &b);
    buf_reset(&b);
    read_exactly(fd, word, 8);
    n_keys = wire_load_u64(word);
    for (uint64_t i = 0; i < n_keys; i++) {
        size_t size;

        read_exactly(fd, word, 8);
        size = (size_t)wire_load_u64(word);
        key = realloc(key, size + 1);
        if (!key)
            die("memory");
        read_exactly(fd, key, size);
        if (is_of_good(key, size))
            continue;
        n_deleted++;
        if (wire_put_key(&b, WIRE_OP_DELETE_KEY, wire_span(key, size)) < 0)
            die("memory");
    }
    free(key);
    send_all(fd, &b);
    for (uint64_t i = 0; i < n_deleted; i++)
        read_exactly(fd, word, 8);
    buf_finish(&b);
    return n_deleted;
}

/* ---- broken messages ---- */

/* Fields behind the type byte: k key, v value, a number, w word, l list of keys, p list of pairs. */
static const char *const shapes[WIRE_OP_COUNT] = {
    [WIRE_OP_VALIDATE] = "w",   [WIRE_OP_SET] = "kv",      [WIRE_OP_COMPARE_SET] = "kvv",
    [WIRE_OP_GET] = "k",        [WIRE_OP_ADD] = "ka",      [WIRE_OP_CHECK] = "l",
    [WIRE_OP_WAIT] = "l",       [WIRE_OP_GETNUMKEYS] = "", [WIRE_OP_DELETE_KEY] = "k",
    [WIRE_OP_APPEND] = "kv",    [WIRE_OP_MULTI_GET] = "l", [WIRE_OP_MULTI_SET] = "p",
    [WIRE_OP_CANCEL_WAIT] = "", [WIRE_OP_PING] = "w",      [WIRE_OP_QUEUE_PUSH] = "kv",
    [WIRE_OP_QUEUE_POP] = "k",  [WIRE_OP_QUEUE_LEN] = "k", [WIRE_OP_LIST_KEYS] = "",
    [WIRE_OP_BARRIER] = "ka",
};

/* 2^k - 1, 2^k, 2^k + 1 where limits and types end, and some more: 40. */
static uint64_t boundary(unsigned i)
{
    static const unsigned powers[] = {3, 8, 13, 16, 17, 20, 23, 27, 31, 32, 40, 63};
    static const uint64_t others[] = {0, UINT64_MAX, UINT64_MAX - 7, 131073};

    if (i < 3 * ARRAY_SIZE(powers))
        return (UINT64_C(1) << powers[i / 3]) + i % 3 - 1;
    return others[i - 3 * ARRAY_SIZE(powers)];
}

enum { N_BOUNDARIES = 40 };

/* Places of 8 bytes in a message that tell lengths or counts. */
struct places {
    size_t at[16];
    size_t n;
};

static void put_u64(struct buf *b, struct places *p, uint64_t v)
{
    if (p->n < ARRAY_SIZE(p->at))
        p->at[p->n++] = buf_size(b);
    if (buf_append_u64(b, v) < 0)
        die("memory");
}

static void put_vec(struct buf *b, struct places *p, const char *text)
{
    put_u64(b, p, strlen(text));
    if (buf_append(b, text, strlen(text)) < 0)
        die("memory");
}

static void put_field(struct buf *b, struct places *p, char field)
{
    int r = 0;

    switch (field) {
    case 'k':
        put_vec(b, p, "/hostile");
        break;
    case 'v':
        put_vec(b, p, "value");
        break;
    case 'a':
        put_u64(b, p, 1);
        break;
    case 'w':
        r = buf_append_u32(b, (uint32_t)random());
        break;
    case 'l':
        put_u64(b, p, 2);
        put_vec(b, p, "/hostile");
        put_vec(b, p, "/never");
        break;
    case 'p':
        put_u64(b, p, 1);
        put_vec(b, p, "/hostile");
        put_vec(b, p, "value");
        break;
    }
    if (r < 0)
        die("memory");
}

static void put_message(struct buf *b, struct places *p, unsigned op)
{
    *p = (struct places){0};
    if (buf_append_u8(b, (uint8_t)op) < 0)
        die("memory");
    for (const char *f = op < WIRE_OP_COUNT ? shapes[op] : ""; *f; f++)
        put_field(b, p, *f);
}

/* The n-th broken message: the first ones go through the table, the others are random damage. */
static void put_broken(struct buf *b, uint64_t n)
{
    unsigned op = (unsigned)(n % WIRE_OP_COUNT);
    uint64_t rest = n / WIRE_OP_COUNT;
    struct places p;
    uint8_t *bytes;

    put_message(b, &p, op);
    if (p.n > 0 && rest < N_BOUNDARIES * 8) {
        uint64_t v = boundary((unsigned)(rest % N_BOUNDARIES));

        bytes = buf_bytes(b) + p.at[rest / N_BOUNDARIES % p.n];
        for (int i = 0; i < 8; i++)
            bytes[i] = (uint8_t)(v >> (8 * i));
        return;
    }
    bytes = buf_bytes(b);
    for (int i = 0; i < 3; i++)
        bytes[(size_t)random() % buf_size(b)] = (uint8_t)random();
    if (random() % 8 == 0)
        buf_reset(b); /* something else altogether */
    for (int i = 0; random() % 4 && i < 40; i++) {
        if (buf_append_u32(b, (uint32_t)random()) < 0)
            die("memory");
    }
}

/* An item that stays in a queue of some random name could not be found again, and would count as leaked. */
static bool is_valid_push(const struct buf *b)
{
    static const struct wire_limits limits = WIRE_LIMITS_DEFAULT;
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size;

    return wire_decode(&scanner, &limits, buf_bytes(b), buf_size(b), &request, &size) == 0 &&
           request.op == WIRE_OP_QUEUE_PUSH;
}

static void attack_with_frames(uint64_t count)
{
    struct buf b = {0};

    for (uint64_t n = 0; n < count;) {
        int fd = connect_from((unsigned)n);

        if (n % 64)
            greet(fd);
        /* Some messages on each connection, since many do not end it. */
        for (int i = 0; i < 8 && n < count; i++, n++) {
            put_broken(&b, n);
            if (is_valid_push(&b))
                buf_bytes(&b)[0] = WIRE_OP_SET;
            if (!send_bytes(fd, buf_bytes(&b), buf_size(&b), 0))
                i = 8;
            buf_reset(&b);
        }
        if (n % 5 == 0)
            (void)shutdown(fd, SHUT_WR); /* an end of stream instead of a reset, now and then */
        (void)close(fd);
    }
    buf_finish(&b);
}

/* ---- slow clients ---- */

/* Each sends a byte a second until it is cut off; all of them have to be, in time. */
static void attack_slowly(unsigned count)
{
    static const uint8_t message[] = {0x00, 0xce, 0xf7, 0x85};
    int *fds = calloc(count, sizeof(*fds));
    unsigned left = count;
    uint64_t started;

    if (!fds)
        die("memory");
    for (unsigned i = 0; i < count; i++) {
        fds[i] = connect_from(i);
        if (i % 2)
            greet(fds[i]);
    }
    started = now_ns();
    for (unsigned second = 0; left > 0; second++) {
        for (unsigned i = 0; i < count; i++) {
            /* Without VALIDATE: its first bytes. Behind it: a SET whose value never ends. */
            uint8_t byte = i % 2 == 0 ? message[second % 4] : second == 0 ? WIRE_OP_SET : second == 1 ? 8 : 0;

            if (fds[i] < 0 || (i % 2 == 0 && second >= sizeof(message)))
                continue;
            if (!send_bytes(fds[i], &byte, 1, 0))
                fds[i] = (close(fds[i]), -1);
        }
        sleep(1);
        left = 0;
        for (unsigned i = 0; i < count; i++) {
            uint8_t byte;

            if (fds[i] >= 0 && recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0)
                fds[i] = (close(fds[i]), -1);
            left += fds[i] >= 0;
        }
        if ((double)(now_ns() - started) / 1e9 > 90) {
            errno = ETIMEDOUT;
            die("slow clients were not cut off");
        }
    }
    free(fds);
}

/* ---- clients that do not read ---- */

static void store_big(int fd)
{
    uint8_t *value = calloc(1, BIG), nonce[4];
    struct buf b = {0};

    if (!value || wire_put_key_value(&b, WIRE_OP_SET, wire_span("/big", 4), wire_span(value, BIG)) < 0 ||
        wire_put_word(&b, WIRE_OP_PING, 1) < 0)
        die("memory");
    for (size_t sent = 0; sent < buf_size(&b);) {
        ssize_t n = send(fd, buf_bytes(&b) + sent, buf_size(&b) - sent, MSG_NOSIGNAL);

        if (n < 0)
            die("storing a large value");
        sent += (size_t)n;
    }
    read_exactly(fd, nonce, sizeof(nonce));
    buf_finish(&b);
    free(value);
}

static void attack_deaf(unsigned count)
{
    struct buf b = {0};
    int first = connect_from(0);

    greet(first);
    store_big(first);
    for (int i = 0; i < 60; i++) { /* 1.3 KB */
        if (wire_put_key(&b, WIRE_OP_GET, wire_span("/big", 4)) < 0)
            die("memory");
    }
    for (unsigned i = 0; i < count; i++) {
        int fd = connect_from(i); /* stays open until this process ends */

        greet(fd);
        (void)send_bytes(fd, buf_bytes(&b), buf_size(&b), MSG_DONTWAIT); /* as much as it takes */
    }
    buf_finish(&b);
    sleep(3);
}

/* ---- both ---- */

static pid_t start_attack(const char *mode, uint64_t count)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        die("fork");
    if (pid > 0)
        return pid;
    srandom((unsigned)parent);
    if (strcmp(mode, "frames") == 0)
        attack_with_frames(count);
    else if (strcmp(mode, "slow") == 0)
        attack_slowly((unsigned)count);
    else
        attack_deaf((unsigned)count);
    _exit(0);
}

/* Keeps the good clients going until the attack is over; returns the largest memory seen. */
static long outlive(struct good *good, unsigned n_clients, pid_t attack, uint64_t *ret_n_keys)
{
    uint64_t started = now_ns(), report = started, n_keys = 0;
    long largest = 0;
    int status;

    for (unsigned i = 0; waitpid(attack, &status, WNOHANG) == 0; i++) {
        talk(&good[i % n_clients]);
        if (i % 64 == 0 && resident_kib() > largest)
            largest = resident_kib();
        if (i % CLEAN_EVERY == CLEAN_EVERY - 1)
            n_keys += clean_up(good[0].fd);
        if (now_ns() - report > (uint64_t)REPORT_S * 1000000000) {
            report = now_ns();
            (void)fprintf(stderr,
                          "store_hostile: %" PRIu64 " good operations after %.0f s, server has %ld KiB\n",
                          n_good, (double)(report - started) / 1e9, resident_kib());
        }
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        errno = ECANCELED;
        die("the attack failed");
    }
    *ret_n_keys = n_keys;
    return largest;
}

int main(int argc, char *argv[])
{
    unsigned n_clients = argc > 5 ? (unsigned)atoi(argv[5]) : 100;
    struct good *good = calloc(n_clients, sizeof(*good));
    struct rlimit fds;
    uint64_t started;
    long before, largest;
    uint64_t n_keys;
    pid_t attack;

    if (argc < 5 || !good ||
        (strcmp(argv[1], "frames") && strcmp(argv[1], "slow") && strcmp(argv[1], "deaf"))) {
        (void)fprintf(stderr, "usage: store_hostile frames|slow|deaf PORT PID COUNT [GOOD]\n");
        return 2;
    }
    port = (uint16_t)atoi(argv[2]);
    server = atoi(argv[3]);
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0) {
        fds.rlim_cur = fds.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &fds); /* without it, connecting says what is missing */
    }
    for (unsigned i = 0; i < n_clients; i++) {
        good[i] = (struct good){.fd = connect_from(i), .id = {getpid(), i}};
        greet(good[i].fd);
        talk(&good[i]);
    }
    before = resident_kib();
    started = now_ns();
    attack = start_attack(argv[1], strtoull(argv[4], NULL, 10));
    largest = outlive(good, n_clients, attack, &n_keys);
    qsort(latencies, n_latencies, sizeof(latencies[0]), compare_u64);
    (void)usleep(300000); /* the server closes what is left */
    n_keys += clean_up(good[0].fd);
    (void)printf("{\"mode\": \"%s\", \"count\": %s, \"seconds\": %.1f, \"good_operations\": %" PRIu64
                 ", \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.1f, \"rss_before_kib\": %ld, "
                 "\"rss_largest_kib\": %ld, \"rss_after_kib\": %ld, \"keys\": %" PRIu64 "}\n",
                 argv[1], argv[4], (double)(now_ns() - started) / 1e9, n_good, latency_ms(0.5),
                 latency_ms(0.99), latency_ms(1), before, largest, resident_kib(), n_keys);
    free(good);
    return 0;
}
