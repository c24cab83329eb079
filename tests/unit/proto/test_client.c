/*
 * The client machine: conversations as said and answered, and every capture of a real client spoken again.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/client.h"
#include "tests/support/c/transcript.h"
#include "tests/support/c/wire_messages.h"

#include "tests/support/c/cmocka_fixed.h"

#define SPAN(text) ((struct wire_span){(const uint8_t *)(text), sizeof(text) - 1})
#define KEY "\x02\0\0\0\0\0\0\0/k"

/* ------------------------------------------------------------------ conversations */

enum what {
    END,
    ASK,      /* op, about "/k" (lists: `count` times); must be possible */
    REFUSED,  /* op, must not be possible: result `number` */
    SENT,     /* exactly these bytes have come out since the last SENT */
    ARRIVES,  /* these bytes come in */
    GOT,      /* the next reply is op, number */
    VALUE,    /* the next reply is op, number, and value `text` */
    NOTHING,  /* no reply is complete */
    CANCEL,   /* client_cancel() */
    ABANDON,  /* client_abandon() */
    PROTOCOL, /* the stream is given up */
    PENDING,  /* `number` replies are due */
};

struct step {
    enum what what;
    enum wire_op op;
    const char *text;
    size_t size;
    int64_t number;
};

/* clang-format off */
#define ask(o) {.what = ASK, .op = WIRE_OP_##o}
#define ask_list(o, n) {.what = ASK, .op = WIRE_OP_##o, .number = (n)}
#define refused(o, r) {.what = REFUSED, .op = WIRE_OP_##o, .number = (r)}
#define sent(t) {.what = SENT, .text = (t), .size = sizeof(t) - 1}
#define arrives(t) {.what = ARRIVES, .text = (t), .size = sizeof(t) - 1}
#define got(o, n) {.what = GOT, .op = WIRE_OP_##o, .number = (n)}
#define value(o, n, t) {.what = VALUE, .op = WIRE_OP_##o, .number = (n), .text = (t), .size = sizeof(t) - 1}
#define nothing {.what = NOTHING}
#define cancel {.what = CANCEL}
#define abandon {.what = ABANDON}
#define protocol_error {.what = PROTOCOL}
#define pending(n) {.what = PENDING, .number = (n)}
/* clang-format on */

static int make_request(struct client *c, const struct step *step)
{
    struct wire_span keys[4] = {SPAN("/k"), SPAN("/k"), SPAN("/k"), SPAN("/k")};

    switch (step->op) {
    case WIRE_OP_MULTI_SET:
        return client_multi_set(c, keys, keys, (size_t)step->number);
    case WIRE_OP_CHECK:
    case WIRE_OP_WAIT:
    case WIRE_OP_MULTI_GET:
        return client_keys(c, step->op, keys, (size_t)step->number);
    default:
        return client_request(c, &(struct wire_request){.op = step->op,
                                                        .word = 0x01020304,
                                                        .amount = 3,
                                                        .key = keys[0],
                                                        .value = SPAN("v"),
                                                        .desired = SPAN("b")});
    }
}

static void run_step(struct client *c, const struct step *step)
{
    struct wire_reply reply;

    switch (step->what) {
    case ASK:
        assert_int_equal(make_request(c, step), 0);
        break;
    case REFUSED:
        assert_int_equal(make_request(c, step), step->number);
        break;
    case SENT:
        assert_int_equal(buf_size(&c->out), step->size);
        assert_memory_equal(buf_bytes(&c->out), step->text, step->size);
        buf_consume(&c->out, step->size);
        break;
    case ARRIVES:
        assert_int_equal(buf_append(&c->in, step->text, step->size), 0);
        break;
    case GOT:
    case VALUE:
        assert_int_equal(client_next(c, &reply), 0);
        assert_int_equal(reply.op, step->op);
        assert_true(reply.number == step->number);
        assert_int_equal(reply.value.size, step->size);
        if (step->size > 0)
            assert_memory_equal(reply.value.data, step->text, step->size);
        break;
    case NOTHING:
        assert_int_equal(client_next(c, &reply), CLIENT_E_MORE);
        assert_true(c->scanner.need > buf_size(&c->in));
        break;
    case CANCEL:
        assert_int_equal(client_cancel(c), 0);
        break;
    case ABANDON:
        assert_int_equal(client_abandon(c), 0);
        break;
    case PROTOCOL:
        assert_int_equal(client_next(c, &reply), CLIENT_E_PROTOCOL);
        assert_non_null(c->error);
        assert_int_equal(client_request(c, &(struct wire_request){.op = WIRE_OP_GET, .key = SPAN("/k")}),
                         CLIENT_E_PROTOCOL);
        break;
    case PENDING:
        assert_int_equal(client_n_pending(c), step->number);
        break;
    case END:
        break;
    }
}

#define ONE "\x01\0\0\0\0\0\0\0"
#define FEW "\x02\0\0\0\0\0\0\0"
#define NONE "\0\0\0\0\0\0\0\0"
#define MINUS_ONE "\xff\xff\xff\xff\xff\xff\xff\xff"

static const struct {
    const char *name;
    struct step steps[16];
} conversations[] = {
    {"handshake",
     {ask(VALIDATE), ask(PING), sent("\x00\x04\x03\x02\x01\x0d\x04\x03\x02\x01"), nothing, arrives("\x04"),
      nothing, arrives("\x03\x02\x01"), got(PING, 0x01020304), nothing, pending(0)}},
    {"nothing answers a write", {ask(SET), ask(APPEND), ask_list(MULTI_SET, 1), ask(QUEUE_PUSH), pending(0)}},
    {"requests ahead of replies",
     {ask(ADD), ask(GET), ask(SET), ask(GETNUMKEYS), pending(3), arrives(MINUS_ONE ONE "x" FEW), got(ADD, -1),
      value(GET, 0, "x"), got(GETNUMKEYS, 2), nothing, pending(0)}},
    {"status", {ask_list(CHECK, 1), ask_list(CHECK, 2), arrives("\x01\x00"), got(CHECK, 1), got(CHECK, 0)}},
    {"compare", {ask(COMPARE_SET), arrives(NONE), value(COMPARE_SET, 0, "")}},
    {"pop", {ask(QUEUE_POP), arrives(FEW), nothing, arrives(ONE "q"), value(QUEUE_POP, 2, "q")}},
    {"pop of an empty queue", {ask(QUEUE_POP), arrives(NONE), value(QUEUE_POP, 0, ""), nothing}},
    {"get of nothing is answered with nothing",
     {ask_list(MULTI_GET, 0), pending(1), got(MULTI_GET, 0), pending(0), nothing}},
    {"the same, behind another",
     {ask(ADD), ask_list(MULTI_GET, 0), nothing, arrives(ONE), got(ADD, 1), got(MULTI_GET, 0), nothing}},
    {"wait",
     {ask_list(WAIT, 1), sent("\x06" ONE KEY), nothing, arrives("\x00"), got(WAIT, WIRE_WAIT_STOP),
      ask(GET)}},
    {"nothing may follow a wait",
     {ask_list(WAIT, 1), refused(GET, CLIENT_E_BUSY), refused(SET, CLIENT_E_BUSY),
      refused(BARRIER, CLIENT_E_BUSY), arrives("\x00"), got(WAIT, 0), ask(BARRIER),
      refused(PING, CLIENT_E_BUSY), arrives("\x00"), got(BARRIER, 0), ask(PING)}},
    {"a wait behind other requests",
     {ask(ADD), ask_list(WAIT, 1), arrives(ONE "\x00"), got(ADD, 1), got(WAIT, 0)}},
    {"cancel",
     {ask_list(WAIT, 1), sent("\x06" ONE KEY), cancel, sent("\x0c"), nothing, arrives("\x01"),
      got(WAIT, WIRE_WAIT_CANCELED), nothing, pending(0), ask(GET)}},
    {"a release crosses the cancel",
     {ask_list(WAIT, 1), cancel, arrives("\x00"), got(WAIT, WIRE_WAIT_STOP), nothing, pending(1),
      arrives("\x01"), nothing, pending(0), ask(GET)}},
    {"cancel of a barrier", {ask(BARRIER), cancel, arrives("\x01"), got(BARRIER, WIRE_WAIT_CANCELED)}},
    {"cancel without a wait",
     {cancel, sent(""), ask(ADD), sent("\x04" KEY "\x03\0\0\0\0\0\0\0"), cancel, sent("")}},
    {"cancel twice",
     {ask_list(WAIT, 0), cancel, cancel, sent("\x06" NONE "\x0c"), arrives("\x01"), got(WAIT, 1)}},
    {"a request behind a cancelled wait",
     {ask_list(WAIT, 1), cancel, ask(GET), arrives("\x01" ONE "x"), got(WAIT, 1), value(GET, 0, "x")}},
    {"a request behind a crossed cancel",
     {ask_list(WAIT, 1), cancel, ask(GET), arrives("\x00\x01" ONE "x"), got(WAIT, 0), value(GET, 0, "x")}},
    {"wait again at once",
     {ask_list(WAIT, 1), cancel, ask_list(WAIT, 1), arrives("\x01\x00"), got(WAIT, 1), got(WAIT, 0),
      pending(0)}},
    {"abandon",
     {ask(ADD), ask(GET), ask_list(WAIT, 1), abandon, ask(PING), pending(5),
      arrives(ONE ONE "x\x00\x01\x04\x03\x02\x01"), got(PING, 0x01020304), pending(0)}},
    {"abandon, not crossed", {ask_list(WAIT, 1), abandon, arrives("\x01"), nothing, pending(0)}},
    {"abandon of nothing", {abandon, sent(""), ask(ADD), arrives(ONE), got(ADD, 1)}},
    {"a byte too much", {arrives("\x00"), protocol_error}},
    {"a byte too much behind a reply", {ask(ADD), arrives(ONE "\x00"), got(ADD, 1), protocol_error}},
    {"cancelled by nobody", {ask_list(WAIT, 1), arrives("\x01"), protocol_error}},
    {"released after the cancel",
     {ask_list(WAIT, 1), cancel, arrives("\x00\x00"), got(WAIT, 0), protocol_error}},
    {"no such status", {ask_list(CHECK, 1), arrives("\x02"), protocol_error}},
    {"no such queue", {ask(QUEUE_POP), arrives(MINUS_ONE), protocol_error}},
    {"a value of 2^64-1 bytes", {ask(GET), arrives(MINUS_ONE), protocol_error}},
    {"2^64-1 keys", {ask(LIST_KEYS), arrives(MINUS_ONE), protocol_error}},
    {"the second value too long",
     {ask_list(MULTI_GET, 2), arrives(ONE "x"), nothing, arrives(MINUS_ONE), protocol_error}},
};

static void test_conversations(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(conversations); i++) {
        _cleanup_(client_finish) struct client c;

        client_init(&c);
        for (size_t k = 0; k < ARRAY_SIZE(conversations[i].steps); k++) {
            const struct step *step = &conversations[i].steps[k];

            if (step->what == END)
                break;
            print_message("%s, step %zu\n", conversations[i].name, k + 1);
            run_step(&c, step);
        }
    }
}

static void test_lists(void **state)
{
    _cleanup_(client_finish) struct client c;
    struct wire_span keys[2] = {SPAN("/a"), SPAN("/b")}, item;
    struct wire_reply reply;

    client_init(&c);
    assert_int_equal(client_keys(&c, WIRE_OP_MULTI_GET, keys, 2), 0);
    assert_int_equal(client_request(&c, &(struct wire_request){.op = WIRE_OP_LIST_KEYS}), 0);
    assert_int_equal(buf_append(&c.in, ONE "1" NONE FEW ONE "k" FEW "/l", 8 + 1 + 8 + 8 + 8 + 1 + 8 + 2), 0);

    assert_int_equal(client_next(&c, &reply), 0);
    assert_int_equal(reply.n_items, 2);
    assert_true(wire_next_key(&reply.items, &item));
    assert_int_equal(item.size, 1);
    assert_true(wire_next_key(&reply.items, &item));
    assert_int_equal(item.size, 0);
    assert_false(wire_next_key(&reply.items, &item));

    assert_int_equal(client_next(&c, &reply), 0);
    assert_int_equal(reply.op, WIRE_OP_LIST_KEYS);
    assert_int_equal(reply.n_items, 2);
    assert_true(wire_next_key(&reply.items, &item));
    assert_true(wire_next_key(&reply.items, &item));
    assert_memory_equal(item.data, "/l", 2);
}

static void test_reply_limits(void **state)
{
    const struct wire_limits limits = {.key_max = 3, .value_max = 4, .keys_max = 2, .message_max = 24};
    static const struct {
        enum wire_op op;
        const char *bytes;
        size_t size;
        bool allowed;
    } cases[] = {
#define CASE(o, t, a) {WIRE_OP_##o, t, sizeof(t) - 1, a}
        CASE(GET, "\x04\0\0\0\0\0\0\0", true),
        CASE(GET, "\x05\0\0\0\0\0\0\0", false),
        CASE(COMPARE_SET, "\x05\0\0\0\0\0\0\0", false),
        CASE(QUEUE_POP, ONE "\x04\0\0\0\0\0\0\0", true),
        CASE(QUEUE_POP, ONE "\x05\0\0\0\0\0\0\0", false),
        CASE(LIST_KEYS, FEW, true),
        CASE(LIST_KEYS, "\x03\0\0\0\0\0\0\0", false),
        CASE(LIST_KEYS, ONE "\x03\0\0\0\0\0\0\0", true),
        CASE(LIST_KEYS, ONE "\x04\0\0\0\0\0\0\0", false),
        CASE(LIST_KEYS, FEW ONE, false), /* 8 + 9 + 8 is more than 24 */
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_(client_finish) struct client c;
        struct step step = {.op = cases[i].op};
        struct wire_reply reply;

        client_init(&c);
        c.limits = limits;
        assert_int_equal(make_request(&c, &step), 0);
        assert_int_equal(buf_append(&c.in, cases[i].bytes, cases[i].size), 0);
        assert_int_equal(client_next(&c, &reply), cases[i].allowed ? CLIENT_E_MORE : CLIENT_E_PROTOCOL);
    }
}

/* The ring of what is pending grows and turns. */
static void test_many_ahead(void **state)
{
    _cleanup_(client_finish) struct client c;
    struct wire_reply reply;
    int64_t asked = 0, answered = 0;

    client_init(&c);
    for (int round = 1; round < 40; round++) {
        for (int i = 0; i < 2 * round; i++, asked++)
            assert_int_equal(
                client_request(&c, &(struct wire_request){.op = WIRE_OP_QUEUE_LEN, .key = SPAN("/k")}), 0);
        for (int i = 0; i < round; i++, answered++) {
            assert_int_equal(buf_append_u64(&c.in, (uint64_t)answered), 0);
            assert_int_equal(client_next(&c, &reply), 0);
            assert_true(reply.number == answered);
        }
        assert_int_equal(client_n_pending(&c), asked - answered);
    }
}

/* ------------------------------------------------------------------ captures of real clients */

/* Asks what the recorded client asked. */
static void ask_again(struct client *c, const struct wire_request *request)
{
    int r = request->op == WIRE_OP_CANCEL_WAIT ? client_cancel(c) : client_request(c, request);

    assert_int_equal(r, 0);
}

/* Writes down a decoded reply as the server must have written it. */
static void put_reply(struct buf *out, const struct wire_reply *reply)
{
    switch (reply->op) {
    case WIRE_OP_PING:
        assert_int_equal(buf_append_u32(out, (uint32_t)reply->number), 0);
        break;
    case WIRE_OP_CHECK:
    case WIRE_OP_WAIT:
    case WIRE_OP_BARRIER:
        assert_int_equal(buf_append_u8(out, (uint8_t)reply->number), 0);
        break;
    case WIRE_OP_GET:
    case WIRE_OP_COMPARE_SET:
        assert_int_equal(wire_put_vec(out, reply->value), 0);
        break;
    case WIRE_OP_QUEUE_POP:
        assert_int_equal(buf_append_u64(out, (uint64_t)reply->number), 0);
        if (reply->number > 0)
            assert_int_equal(wire_put_vec(out, reply->value), 0);
        break;
    case WIRE_OP_LIST_KEYS:
        assert_int_equal(buf_append_u64(out, reply->n_items), 0);
        assert_int_equal(buf_append(out, reply->items.data, reply->items.size), 0);
        break;
    case WIRE_OP_MULTI_GET:
        assert_int_equal(buf_append(out, reply->items.data, reply->items.size), 0);
        break;
    default:
        assert_int_equal(buf_append_u64(out, (uint64_t)reply->number), 0);
        break;
    }
}

static void speak(struct client *c, const struct transcript_event *e)
{
    const struct wire_limits limits = WIRE_LIMITS_DEFAULT;
    struct wire_scanner scanner = {0};
    struct wire_request request;
    size_t size;

    assert_int_equal(wire_decode(&scanner, &limits, e->data, e->size, &request, &size), 0);
    assert_int_equal(size, e->size);
    ask_again(c, &request);
    assert_int_equal(buf_size(&c->out), e->size);
    assert_memory_equal(buf_bytes(&c->out), e->data, e->size);
    buf_consume(&c->out, e->size);
}

static void listen(struct client *c, const struct transcript_event *e, size_t slice_max)
{
    _cleanup_(buf_finish) struct buf again = {0};
    struct wire_reply reply;
    size_t size;

    for (size_t at = 0; at < e->size; at += size) {
        size = 1 + (size_t)rand() % slice_max;
        if (size > e->size - at)
            size = e->size - at;
        assert_int_equal(buf_append(&c->in, e->data + at, size), 0);
        while (client_next(c, &reply) == 0)
            put_reply(&again, &reply);
        assert_null(c->error);
    }
    assert_int_equal(buf_size(&again), e->size);
    assert_memory_equal(buf_bytes(&again), e->data, e->size);
}

static int speak_file(void *data, const char *path)
{
    _cleanup_(transcript_finish) struct transcript t = {0};
    int *n_conversations = data;

    if (strstr(path, "err-"))
        return 0; /* no client of ours says such things */
    assert_int_equal(transcript_read(path, &t, NULL), 0);
    for (size_t slice_max = 1; slice_max < 10000; slice_max *= 30) {
        for (int connection = 0; connection < t.n_connections; connection++, ++*n_conversations) {
            _cleanup_(client_finish) struct client c;

            client_init(&c);
            for (size_t i = 0; i < t.n_events; i++) {
                const struct transcript_event *e = &t.events[i];

                if (e->connection == connection && e->kind == TRANSCRIPT_CLIENT_BYTES)
                    speak(&c, e);
                if (e->connection == connection && e->kind == TRANSCRIPT_SERVER_BYTES)
                    listen(&c, e, slice_max);
            }
        }
    }
    return 0;
}

static void test_captures(void **state)
{
    int n_conversations = 0;

    srand(1);
    assert_int_equal(transcript_for_each(transcript_folder(), "", speak_file, &n_conversations), 0);
    assert_true(n_conversations > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations), cmocka_unit_test(test_lists),
        cmocka_unit_test(test_reply_limits),  cmocka_unit_test(test_many_ahead),
        cmocka_unit_test(test_captures),
    };

    return cmocka_run_group_tests_name("proto/client", tests, NULL, NULL);
}
