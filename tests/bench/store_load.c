/*
 * Load for a store: N connections, D requests in flight on each, for some seconds; prints one line of JSON
 * with the rate, the round trip times, and the CPU time of the server process for each operation.
 *
 * Speaks to TCPStore servers, to redis-server (for comparison) and to the echo server beside it (what the
 * sockets alone cost). Replies are counted, not read: the generator must stay cheaper than the server.
 *
 *     store_load --port P [--protocol tcpstore|redis|echo] [--op add|get|ping|connect] [--connections N]
 *                [--depth D] [--seconds S] [--pid SERVER] [--value-size V] [--per-address N]
 *
 * --op connect measures how fast N clients are connected and validated, and then how fast all of them pass
 * a barrier (ADD, the last one SETs, all WAIT).
 */

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "proto/wire.h"
#include "tests/support/c/wire_messages.h"

enum { RING = 256, LATENCIES_MAX = 1 << 20, EVENTS = 256 };

enum protocol { TCPSTORE, REDIS, ECHO };
enum operation { OP_ADD, OP_GET, OP_PING, OP_CONNECT };

static struct settings {
    enum protocol protocol;
    enum operation op;
    uint16_t port;
    unsigned n_connections;
    unsigned depth;
    double seconds;
    pid_t pid;
    size_t value_size;
    unsigned per_address;
} settings = {.n_connections = 50, .depth = 1, .seconds = 2, .value_size = 8, .per_address = 4000};

/* All requests have one size and all replies have one size (or one number of line ends, with redis). */
struct connection {
    int fd;
    struct buf ring; /* RING requests, twice, so that any RING of them are contiguous */
    size_t request_size;
    size_t next;    /* request to send */
    size_t unsent;  /* bytes of requests that the socket did not take */
    size_t partial; /* bytes (or line ends) of the next reply that are there */
    uint64_t sent_ns[RING];
    size_t oldest; /* request that is answered next */
};

static uint64_t latencies[LATENCIES_MAX];
static size_t n_latencies;

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static _Noreturn void die(const char *what)
{
    (void)fprintf(stderr, "store_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- the server process ---- */

/* Nanoseconds on a CPU, of all threads. */
static uint64_t cpu_ns(pid_t pid)
{
    char path[64];
    uint64_t sum = 0;
    DIR *tasks;

    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    if (!tasks)
        return 0;
    for (struct dirent *e; (e = readdir(tasks));) {
        char file[sizeof(path) + sizeof(e->d_name) + sizeof("/schedstat")];
        uint64_t ns;
        FILE *f;

        if (e->d_name[0] == '.')
            continue; /* ".." has a schedstat too */
        (void)snprintf(file, sizeof(file), "%s/%s/schedstat", path, e->d_name);
        f = fopen(file, "re");
        if (!f)
            continue;
        if (fscanf(f, "%" SCNu64, &ns) == 1)
            sum += ns;
        (void)fclose(f);
    }
    (void)closedir(tasks);
    return sum;
}

static long resident_kib(pid_t pid)
{
    char path[64];
    long pages = 0, all;
    FILE *f;

    (void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    (void)fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* ---- requests ---- */

static void put(struct buf *b, const void *data, size_t n)
{
    if (buf_append(b, data, n) < 0)
        die("memory");
}

static void put_redis(struct buf *b, unsigned key)
{
    char text[96];
    int n;

    if (settings.op == OP_ADD)
        n = snprintf(text, sizeof(text), "*3\r\n$6\r\nINCRBY\r\n$12\r\n/load/%06u\r\n$1\r\n1\r\n", key);
    else if (settings.op == OP_GET)
        n = snprintf(text, sizeof(text), "*2\r\n$3\r\nGET\r\n$12\r\n/load/%06u\r\n", key);
    else
        n = snprintf(text, sizeof(text), "*1\r\n$4\r\nPING\r\n");
    put(b, text, (size_t)n);
}

static void put_tcpstore(struct buf *b, unsigned key)
{
    char name[16];
    struct wire_span span = wire_span(name, (size_t)snprintf(name, sizeof(name), "/load/%06u", key));
    int r;

    if (settings.op == OP_ADD)
        r = wire_put_key_amount(b, WIRE_OP_ADD, span, 1);
    else if (settings.op == OP_GET)
        r = wire_put_key(b, WIRE_OP_GET, span);
    else
        r = wire_put_word(b, WIRE_OP_PING, key);
    if (r < 0)
        die("memory");
}

/* The echo server sees what a TCPStore server sees, and sends as much back as that would. */
static void put_request(struct buf *b, unsigned key)
{
    if (settings.protocol == REDIS)
        put_redis(b, key);
    else
        put_tcpstore(b, key);
}

static size_t reply_size(const struct connection *c)
{
    if (settings.protocol == ECHO)
        return c->request_size;
    if (settings.protocol == REDIS)
        return settings.op == OP_GET ? 2 : 1; /* line ends */
    return settings.op == OP_ADD ? 8 : settings.op == OP_GET ? 8 + settings.value_size : 4;
}

static void fill_ring(struct connection *c, unsigned index)
{
    for (unsigned i = 0; i < RING; i++)
        put_request(&c->ring, settings.op == OP_ADD ? index : (index * RING + i) % 1000);
    c->request_size = buf_size(&c->ring) / RING;
    for (unsigned i = 0; i < RING; i++)
        put_request(&c->ring, settings.op == OP_ADD ? index : (index * RING + i) % 1000);
}

/* ---- connecting ---- */

/* Many clients need more than one address of their own, 127.0.0.2, 127.0.0.3, ...: the kernel looks long for
 * a free port when most of them are taken. */
static int connect_from(unsigned index, bool nonblocking)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(settings.port)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0);

    if (fd < 0)
        die("socket");
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* only a speed-up */
    if (index >= settings.per_address) {
        (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + index / settings.per_address);
        if (bind(fd, (struct sockaddr *)&from, sizeof(from)) < 0)
            die("bind");
    }
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0 && errno != EINPROGRESS)
        die("connect");
    return fd;
}

static void read_exactly(int fd, void *to, size_t n)
{
    uint8_t *p = to;

    while (n > 0) {
        ssize_t got = read(fd, p, n);

        if (got <= 0)
            die("reading a reply");
        p += got;
        n -= (size_t)got;
    }
}

static void write_exactly(int fd, const struct buf *b)
{
    if (write(fd, buf_bytes(b), buf_size(b)) != (ssize_t)buf_size(b))
        die("writing a request");
}

static void ping(int fd, bool with_validate)
{
    struct buf b = {0};
    uint8_t nonce[4];
    int r = with_validate ? wire_put_word(&b, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC) : 0;

    if (r < 0 || wire_put_word(&b, WIRE_OP_PING, 1) < 0)
        die("memory");
    write_exactly(fd, &b);
    read_exactly(fd, nonce, sizeof(nonce));
    buf_finish(&b);
}

/* Values that the GETs find. */
static void store_values(int fd)
{
    char *value = malloc(settings.value_size + 1);

    if (!value)
        die("memory");
    memset(value, '7', settings.value_size);
    for (unsigned i = 0; i < 1000 && settings.op == OP_GET; i++) {
        struct buf b = {0};
        char name[16], head[96];
        int n = snprintf(name, sizeof(name), "/load/%06u", i), r = 0;

        if (settings.protocol == TCPSTORE) {
            r = wire_put_key_value(&b, WIRE_OP_SET, wire_span(name, (size_t)n),
                                   wire_span(value, settings.value_size));
            write_exactly(fd, &b);
        } else if (settings.protocol == REDIS) {
            n = snprintf(head, sizeof(head), "*3\r\n$3\r\nSET\r\n$12\r\n%s\r\n$%zu\r\n", name,
                         settings.value_size);
            put(&b, head, (size_t)n);
            put(&b, value, settings.value_size);
            put(&b, "\r\n", 2);
            write_exactly(fd, &b);
            read_exactly(fd, head, 5); /* +OK */
        }
        if (r < 0)
            die("memory");
        buf_finish(&b);
    }
    if (settings.protocol == TCPSTORE)
        ping(fd, false); /* its answer says that the values are there */
    free(value);
}

/* ---- load ---- */

static void send_requests(struct connection *c, size_t n)
{
    uint64_t now = now_ns();
    ssize_t sent;
    size_t size;

    for (size_t i = 0; i < n; i++)
        c->sent_ns[(c->next + i) % RING] = now;
    size = n * c->request_size + c->unsent;
    sent = write(c->fd, buf_bytes(&c->ring) + c->next * c->request_size - c->unsent, size);
    if (sent < 0 && errno == EAGAIN)
        sent = 0;
    if (sent < 0)
        die("sending");
    c->unsent = size - (size_t)sent;
    c->next = (c->next + n) % RING;
    /* What is unsent must not lie in front of the ring's first request. */
    if (c->next * c->request_size < c->unsent)
        c->next += RING;
}

static void note_latency(struct connection *c, uint64_t now)
{
    if (n_latencies < LATENCIES_MAX)
        latencies[n_latencies++] = now - c->sent_ns[c->oldest];
    c->oldest = (c->oldest + 1) % RING;
}

static size_t count_line_ends(const uint8_t *data, size_t n)
{
    size_t count = 0;

    for (const uint8_t *p = data, *end = data + n; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        count++;
    return count;
}

/* Returns how many requests were answered. */
static size_t receive(struct connection *c)
{
    static uint8_t bytes[256 * 1024];
    ssize_t n = read(c->fd, bytes, sizeof(bytes));
    size_t units, done;
    uint64_t now;

    if (n < 0 && errno == EAGAIN)
        return 0;
    if (n <= 0)
        die("reading replies");
    units = c->partial + (settings.protocol == REDIS ? count_line_ends(bytes, (size_t)n) : (size_t)n);
    done = units / reply_size(c);
    c->partial = units % reply_size(c);
    now = now_ns();
    for (size_t i = 0; i < done; i++)
        note_latency(c, now);
    return done;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static double latency_us(double share)
{
    if (n_latencies == 0)
        return 0;
    return (double)latencies[(size_t)((double)(n_latencies - 1) * share)] / 1000;
}

static uint64_t run_for(struct connection *cs, int epoll, uint64_t until)
{
    struct epoll_event events[EVENTS];
    uint64_t n_done = 0;

    while (now_ns() < until) {
        int n = epoll_wait(epoll, events, EVENTS, 100);

        for (int i = 0; i < n; i++) {
            struct connection *c = &cs[events[i].data.u32];
            size_t done = receive(c);

            n_done += done;
            if (done > 0 || c->unsent > 0)
                send_requests(c, done);
        }
    }
    return n_done;
}

static void load(void)
{
    struct connection *cs = calloc(settings.n_connections, sizeof(*cs));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    uint64_t started, cpu, n_done, spent;

    if (!cs || epoll < 0)
        die("starting");
    for (unsigned i = 0; i < settings.n_connections; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};

        cs[i].fd = connect_from(i, false);
        if (settings.protocol == TCPSTORE)
            ping(cs[i].fd, true);
        if (i == 0)
            store_values(cs[i].fd);
        if (fcntl(cs[i].fd, F_SETFL, O_NONBLOCK) < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, cs[i].fd, &event) < 0)
            die("connecting");
        fill_ring(&cs[i], i);
    }
    for (unsigned i = 0; i < settings.n_connections; i++)
        send_requests(&cs[i], settings.depth);
    (void)run_for(cs, epoll, now_ns() + 200000000); /* warm */
    n_latencies = 0;
    started = now_ns();
    cpu = cpu_ns(settings.pid);
    n_done = run_for(cs, epoll, started + (uint64_t)(settings.seconds * 1e9));
    spent = now_ns() - started;
    cpu = cpu_ns(settings.pid) - cpu;
    qsort(latencies, n_latencies, sizeof(latencies[0]), compare_u64);
    (void)printf("{\"ops\": %" PRIu64
                 ", \"ops_per_s\": %.0f, \"cpu_us_per_op\": %.3f, \"server_cpu\": %.2f, "
                 "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"rss_kib\": %ld}\n",
                 n_done, (double)n_done * 1e9 / (double)spent,
                 n_done ? (double)cpu / 1000 / (double)n_done : 0, (double)cpu / (double)spent,
                 latency_us(0.5), latency_us(0.99), latency_us(1), resident_kib(settings.pid));
}

/* ---- many clients ---- */

static void write_all(const int *fds, const struct buf *b)
{
    for (unsigned i = 0; i < settings.n_connections; i++)
        write_exactly(fds[i], b);
}

static double seconds_since(uint64_t started)
{
    return (double)(now_ns() - started) / 1e9;
}

/* All at once: connect, VALIDATE + PING, and every PING answered. */
static double connect_all(int *fds)
{
    struct buf hello = {0};
    uint64_t started = now_ns();
    uint8_t nonce[4];

    if (wire_put_word(&hello, WIRE_OP_VALIDATE, WIRE_VALIDATE_MAGIC) < 0 ||
        wire_put_word(&hello, WIRE_OP_PING, 1) < 0)
        die("memory");
    for (unsigned i = 0; i < settings.n_connections; i++) {
        fds[i] = connect_from(i, false);
        write_exactly(fds[i], &hello);
    }
    for (unsigned i = 0; i < settings.n_connections; i++)
        read_exactly(fds[i], nonce, sizeof(nonce));
    buf_finish(&hello);
    return seconds_since(started);
}

/* The barrier of PyTorch: count in, the last one opens the door, all wait for the door. */
static double pass_barrier(const int *fds)
{
    struct wire_span door = wire_span("/door", 5);
    struct buf count_in = {0}, open = {0};
    uint64_t started = now_ns(), n = 0;
    uint8_t count[8], stop;

    if (wire_put_key_amount(&count_in, WIRE_OP_ADD, wire_span("/count", 6), 1) < 0 ||
        wire_put_keys(&count_in, WIRE_OP_WAIT, &door, 1) < 0 ||
        wire_put_key_value(&open, WIRE_OP_SET, door, wire_span("1", 1)) < 0)
        die("memory");
    write_all(fds, &count_in);
    for (unsigned i = 0; i < settings.n_connections; i++) {
        read_exactly(fds[i], count, sizeof(count));
        if (wire_load_u64(count) > n)
            n = wire_load_u64(count);
    }
    if (n != settings.n_connections)
        die("the barrier counts wrong");
    write_exactly(fds[0], &open);
    for (unsigned i = 0; i < settings.n_connections; i++)
        read_exactly(fds[i], &stop, 1);
    buf_finish(&count_in);
    buf_finish(&open);
    return seconds_since(started);
}

static void many_clients(void)
{
    int *fds = calloc(settings.n_connections, sizeof(*fds));
    uint64_t cpu = cpu_ns(settings.pid);
    long before = resident_kib(settings.pid);
    double connected, barrier;
    long idle;

    if (!fds)
        die("memory");
    connected = connect_all(fds);
    idle = resident_kib(settings.pid);
    barrier = pass_barrier(fds);
    (void)printf(
        "{\"clients\": %u, \"connect_s\": %.3f, \"barrier_s\": %.3f, \"rss_before_kib\": %ld, "
        "\"rss_idle_kib\": %ld, \"rss_kib\": %ld, \"cpu_s\": %.3f}\n",
        settings.n_connections, connected, barrier, before, idle, resident_kib(settings.pid),
        (double)(cpu_ns(settings.pid) - cpu) / 1e9);
    free(fds);
}

/* ---- options ---- */

static int one_of(const char *word, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(word, words[i]) == 0)
            return i;
    }
    (void)fprintf(stderr, "store_load: %s: unknown\n", word);
    exit(2);
}

static void parse(int argc, char *argv[])
{
    static const char *const protocols[] = {"tcpstore", "redis", "echo"};
    static const char *const operations[] = {"add", "get", "ping", "connect"};
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},        {"protocol", required_argument, NULL, 'r'},
        {"op", required_argument, NULL, 'o'},          {"connections", required_argument, NULL, 'c'},
        {"depth", required_argument, NULL, 'd'},       {"seconds", required_argument, NULL, 's'},
        {"pid", required_argument, NULL, 'i'},         {"value-size", required_argument, NULL, 'v'},
        {"per-address", required_argument, NULL, 'a'}, {NULL, 0, NULL, 0},
    };

    for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (o) {
        case 'p':
            settings.port = (uint16_t)atoi(optarg);
            break;
        case 'r':
            settings.protocol = (enum protocol)one_of(optarg, protocols, 3);
            break;
        case 'o':
            settings.op = (enum operation)one_of(optarg, operations, 4);
            break;
        case 'c':
            settings.n_connections = (unsigned)atoi(optarg);
            break;
        case 'd':
            settings.depth = (unsigned)atoi(optarg);
            break;
        case 's':
            settings.seconds = atof(optarg);
            break;
        case 'i':
            settings.pid = atoi(optarg);
            break;
        case 'v':
            settings.value_size = (size_t)atol(optarg);
            break;
        case 'a':
            settings.per_address = (unsigned)atoi(optarg);
            break;
        default:
            exit(2);
        }
    }
    if (settings.port == 0 || settings.n_connections == 0 || settings.per_address == 0 ||
        settings.depth == 0 || settings.depth > RING / 2) {
        (void)fprintf(stderr, "store_load: --port is needed, --connections from 1, --depth from 1 to %d\n",
                      RING / 2);
        exit(2);
    }
}

int main(int argc, char *argv[])
{
    struct rlimit fds;

    parse(argc, argv);
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0) {
        fds.rlim_cur = fds.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &fds); /* without it, many clients fail with a clear message */
    }
    if (settings.op == OP_CONNECT)
        many_clients();
    else
        load();
    return 0;
}
