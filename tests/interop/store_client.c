/*
 * The blocking client on a command line, for tests: reads commands from standard input, one a line, and
 * answers each with one line. Not a tool for people.
 *
 *     crw-store-client HOST PORT CONNECT_TIMEOUT_MS
 *
 * Words of a command are separated by one space. A key or value is written as hexadecimal digits ("-" for
 * an empty one), or as "xBYTE*COUNT": that many times the byte. Answers: "ok", "ok WORD ...", or "error
 * RESULT SENTENCE" with the result's name. Values of more than 64 bytes are answered as "crcXXXXXXXX*SIZE".
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "proto/client_sock.h"

#include "tests/support/c/store_calls.h"

enum { WORDS_MAX = 70000 };

struct command {
    char *words[WORDS_MAX];
    uint8_t *bytes[WORDS_MAX]; /* what a word stands for, if somebody asked; owned */
    size_t n_words;
};

/* ------------------------------------------------------------------ words */

static const char *result_name(int r)
{
    switch (r) {
    case CLIENT_E_PROTOCOL:
        return "PROTOCOL";
    case CLIENT_E_CLOSED:
        return "CLOSED";
    case CLIENT_E_TIMEOUT:
        return "TIMEOUT";
    case CLIENT_E_INTERRUPTED:
        return "INTERRUPTED";
    case STORE_CALL_EMPTY:
        return "EMPTY";
    default:
        return r < 0 ? strerrorname_np(-r) : "?";
    }
}

static void usage_error(const char *what)
{
    fprintf(stderr, "crw-store-client: %s\n", what);
    exit(2);
}

static uint8_t *repeated(const char *word, struct wire_span *ret_bytes)
{
    unsigned byte;
    size_t size;
    uint8_t *data;

    if (sscanf(word, "x%2x*%zu", &byte, &size) != 2)
        usage_error("a repeated byte is xBYTE*COUNT");
    data = malloc(size + 1);
    if (!data)
        usage_error("no memory");
    memset(data, (int)byte, size);
    *ret_bytes = wire_span(data, size);
    return data;
}

static uint8_t *hexadecimal(const char *word, struct wire_span *ret_bytes)
{
    size_t size = strlen(word) / 2;
    uint8_t *data = malloc(size + 1);

    if (!data)
        usage_error("no memory");
    for (size_t i = 0; i < size; i++) {
        unsigned byte;

        if (sscanf(word + 2 * i, "%2x", &byte) != 1)
            usage_error("keys and values are hexadecimal");
        data[i] = (uint8_t)byte;
    }
    *ret_bytes = wire_span(data, size);
    return data;
}

/* A word stands for one thing: to be asked once. */
static struct wire_span bytes_of(struct command *c, size_t i)
{
    struct wire_span bytes;

    if (i >= c->n_words)
        usage_error("a word is missing");
    if (strcmp(c->words[i], "-") == 0)
        return wire_span("", 0);
    c->bytes[i] = c->words[i][0] == 'x' ? repeated(c->words[i], &bytes) : hexadecimal(c->words[i], &bytes);
    return bytes;
}

static void free_bytes(struct command *c)
{
    for (size_t i = 0; i < c->n_words; i++) {
        free(c->bytes[i]);
        c->bytes[i] = NULL;
    }
}

static long long number_of(const struct command *c, size_t i)
{
    if (i >= c->n_words)
        usage_error("a number is missing");
    return atoll(c->words[i]);
}

/* Words first, first + step, ... up to the end. */
static struct wire_span *spans_of(struct command *c, size_t first, size_t step, size_t *ret_n)
{
    size_t n = c->n_words > first ? (c->n_words - first + step - 1) / step : 0;
    struct wire_span *spans = calloc(n + 1, sizeof(*spans));

    if (!spans)
        usage_error("no memory");
    for (size_t i = 0; i < n; i++)
        spans[i] = bytes_of(c, first + i * step);
    *ret_n = n;
    return spans;
}

static void print_key(struct wire_span key)
{
    printf(key.size == 0 ? " -" : " ");
    for (size_t i = 0; i < key.size; i++)
        printf("%02x", key.data[i]);
}

static void print_value(struct wire_span value)
{
    if (value.size > 64)
        printf(" crc%08lx*%zu", crc32_z(0, value.data, value.size), value.size);
    else
        print_key(value);
}

static void answer(const struct client_sock *s, int r)
{
    if (r)
        printf("error %s %s", result_name(r), client_sock_error(s));
    else
        printf("ok");
}

static void answer_bytes(const struct client_sock *s, int r, struct wire_span bytes)
{
    answer(s, r);
    if (!r)
        print_value(bytes);
}

static void answer_number(const struct client_sock *s, int r, int64_t number)
{
    answer(s, r);
    if (!r)
        printf(" %lld", (long long)number);
}

/* ------------------------------------------------------------------ commands */

static void do_ping(struct client_sock *s, struct command *c)
{
    answer(s, client_sock_ping(s));
}

static void do_join(struct client_sock *s, struct command *c)
{
    int64_t n = 0;
    int r = store_call_join(s, &n);

    answer_number(s, r, n);
}

static void do_set(struct client_sock *s, struct command *c)
{
    answer(s, client_sock_set(s, bytes_of(c, 1), bytes_of(c, 2)));
}

static void do_append(struct client_sock *s, struct command *c)
{
    answer(s, store_call_append(s, bytes_of(c, 1), bytes_of(c, 2)));
}

/* get TIMEOUT KEY */
static void do_get(struct client_sock *s, struct command *c)
{
    struct wire_span value = {0};
    int r = client_sock_get(s, bytes_of(c, 2), (int)number_of(c, 1), &value);

    answer_bytes(s, r, value);
}

static void do_add(struct client_sock *s, struct command *c)
{
    int64_t value = 0;
    int r = client_sock_add(s, bytes_of(c, 1), number_of(c, 2), &value);

    answer_number(s, r, value);
}

static void do_check(struct client_sock *s, struct command *c)
{
    size_t n;
    _cleanup_free_ struct wire_span *keys = spans_of(c, 1, 1, &n);
    bool all = false;
    int r = store_call_check(s, keys, n, &all);

    answer_number(s, r, all);
}

/* wait TIMEOUT KEY... */
static void do_wait(struct client_sock *s, struct command *c)
{
    size_t n;
    _cleanup_free_ struct wire_span *keys = spans_of(c, 2, 1, &n);

    answer(s, store_call_wait(s, keys, n, (int)number_of(c, 1)));
}

static void do_compare_set(struct client_sock *s, struct command *c)
{
    struct wire_span value = {0};
    int r = store_call_compare_set(s, bytes_of(c, 1), bytes_of(c, 2), bytes_of(c, 3), &value);

    answer_bytes(s, r, value);
}

static void do_delete(struct client_sock *s, struct command *c)
{
    bool deleted = false;
    int r = client_sock_delete(s, bytes_of(c, 1), &deleted);

    answer_number(s, r, deleted);
}

/* multi_get TIMEOUT KEY... */
static void do_multi_get(struct client_sock *s, struct command *c)
{
    size_t n;
    _cleanup_free_ struct wire_span *keys = spans_of(c, 2, 1, &n);
    _cleanup_free_ struct wire_span *values = calloc(n + 1, sizeof(*values));
    int r = values ? store_call_multi_get(s, keys, n, (int)number_of(c, 1), values) : -ENOMEM;

    answer(s, r);
    for (size_t i = 0; !r && i < n; i++)
        print_value(values[i]);
}

/* multi_set KEY VALUE KEY VALUE ... */
static void do_multi_set(struct client_sock *s, struct command *c)
{
    size_t n_keys, n_values;
    _cleanup_free_ struct wire_span *keys = spans_of(c, 1, 2, &n_keys);
    _cleanup_free_ struct wire_span *values = spans_of(c, 2, 2, &n_values);

    if (n_keys != n_values)
        usage_error("a value is missing");
    answer(s, store_call_multi_set(s, keys, values, n_keys));
}

static void do_num_keys(struct client_sock *s, struct command *c)
{
    int64_t n = 0;
    int r = store_call_num_keys(s, &n);

    answer_number(s, r, n);
}

static void do_list_keys(struct client_sock *s, struct command *c)
{
    struct wire_span list = {0}, key;
    int r = store_call_list_keys(s, &list);

    answer(s, r);
    while (!r && store_call_next_key(&list, &key))
        print_key(key);
}

static void do_queue_push(struct client_sock *s, struct command *c)
{
    answer(s, store_call_queue_push(s, bytes_of(c, 1), bytes_of(c, 2)));
}

/* queue_pop TIMEOUT KEY */
static void do_queue_pop(struct client_sock *s, struct command *c)
{
    struct wire_span value = {0};
    int r = store_call_queue_pop(s, bytes_of(c, 2), (int)number_of(c, 1), &value);

    answer_bytes(s, r, value);
}

static void do_queue_len(struct client_sock *s, struct command *c)
{
    int64_t len = 0;
    int r = store_call_queue_len(s, bytes_of(c, 1), &len);

    answer_number(s, r, len);
}

/* barrier TIMEOUT KEY WORLD_SIZE */
static void do_barrier(struct client_sock *s, struct command *c)
{
    answer(s, store_call_barrier(s, bytes_of(c, 2), number_of(c, 3), (int)number_of(c, 1)));
}

/* timeout MS: of all calls without their own */
static void do_timeout(struct client_sock *s, struct command *c)
{
    s->timeout_ms = (int)number_of(c, 1);
    printf("ok");
}

static int wake_fds[2];

/* Each SIGUSR1 breaks off one wait. */
static void on_signal(int number)
{
    (void)!write(wake_fds[1], "!", 1); /* an empty pipe takes a byte */
}

static const struct {
    const char *name;
    void (*run)(struct client_sock *s, struct command *c);
} commands[] = {
    {"ping", do_ping},
    {"join", do_join},
    {"set", do_set},
    {"append", do_append},
    {"get", do_get},
    {"add", do_add},
    {"check", do_check},
    {"wait", do_wait},
    {"compare_set", do_compare_set},
    {"delete", do_delete},
    {"multi_get", do_multi_get},
    {"multi_set", do_multi_set},
    {"num_keys", do_num_keys},
    {"list_keys", do_list_keys},
    {"queue_push", do_queue_push},
    {"queue_pop", do_queue_pop},
    {"queue_len", do_queue_len},
    {"barrier", do_barrier},
    {"timeout", do_timeout},
};

static void split(char *line, struct command *c)
{
    c->n_words = 0;
    line[strcspn(line, "\n")] = '\0';
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        if (c->n_words == WORDS_MAX)
            usage_error("too many words");
        c->words[c->n_words++] = word;
    }
}

static void run(struct client_sock *s, struct command *c)
{
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        if (c->n_words > 0 && strcmp(c->words[0], commands[i].name) == 0) {
            commands[i].run(s, c);
            putchar('\n');
            fflush(stdout);
            return;
        }
    }
    usage_error("unknown command");
}

int main(int argc, char **argv)
{
    static struct command command;
    _cleanup_(client_sock_finish) struct client_sock s;
    _cleanup_free_ char *line = NULL;
    size_t capacity = 0;
    int r;

    client_sock_init(&s);
    if (argc != 4)
        usage_error("usage: crw-store-client HOST PORT CONNECT_TIMEOUT_MS");
    if (pipe2(wake_fds, O_CLOEXEC | O_NONBLOCK) < 0)
        usage_error("no pipe");
    (void)sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL);
    s.wake_fd = wake_fds[0];
    r = client_sock_connect(&s, argv[1], (uint16_t)atoi(argv[2]), atoi(argv[3]));
    answer(&s, r);
    putchar('\n');
    fflush(stdout);
    while (getline(&line, &capacity, stdin) >= 0) {
        split(line, &command);
        run(&s, &command);
        free_bytes(&command);
        (void)!read(wake_fds[0], &(char){0}, 1); /* a signal has broken off the wait, if any */
    }
    return r ? 1 : 0;
}
