/*
 * Bodies of the agent session: what is put is what is got, whatever is unknown is ignored, and whatever is
 * wrong is named.
 */

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "proto/frame.h"
#include "rendezvous/session/session_json.h"

#include "tests/support/c/cmocka_fixed.h"

#define A_CAUSE                                                                                              \
    {                                                                                                        \
        .kind = SESSION_CAUSE_WORKER, .fatal = true, .group_rank = 3, .rank = 17, .local_rank = 1,           \
        .exit_code = -9, .pid = 4711, .host = "n\"3\"", .text = "r\xc3\xa4nk"                                \
    }

#define A_REPORT                                                                                             \
    {                                                                                                        \
        .phase = SESSION_FAILED, .instance = UINT64_C(0xfedcba9876543210), .generation = 12,                 \
        .group_rank = 3, .port = 65535, .restarts = 4, .changes = 5, .drain = true, .quiet = true,           \
        .stop_signal = 15, .keeps_keys = true, .cut_from = 18, .age_ns = UINT64_C(3600000000001),            \
        .cause = A_CAUSE                                                                                     \
    }

static const struct session_cause a_cause = A_CAUSE;
static const struct session_report a_report = A_REPORT;
static const struct session_hello a_hello = {.job = "train-7",
                                             .params = {2, 16, 3, 100, 600000, 30000, 1000},
                                             .nonce = {UINT64_MAX, 1},
                                             .attempt = 9,
                                             .host = "node3",
                                             .addr = "10.0.0.3",
                                             .own = "192.168.7.3",
                                             .role = "default",
                                             .n_workers = 8,
                                             .node_rank = 3,
                                             .report = A_REPORT};

static struct wire_span body_of(const struct buf *frame)
{
    struct frame_reader reader = {.stage = FRAME_STAGE_FRAMES};
    struct frame ret;
    size_t size;

    assert_int_equal(frame_decode(&reader, buf_bytes(frame), buf_size(frame), &ret, &size), 0);
    assert_int_equal(size, buf_size(frame));
    assert_int_equal(ret.kind, FRAME_BODY);
    return ret.body;
}

static void assert_cause_equal(const struct session_cause *a, const struct session_cause *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->fatal, b->fatal);
    assert_int_equal(a->group_rank, b->group_rank);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->local_rank, b->local_rank);
    assert_int_equal(a->exit_code, b->exit_code);
    assert_int_equal(a->pid, b->pid);
    assert_string_equal(a->host, b->host);
    assert_string_equal(a->text, b->text);
}

static void assert_report_equal(const struct session_report *a, const struct session_report *b)
{
    assert_int_equal(a->phase, b->phase);
    assert_true(a->instance == b->instance);
    assert_int_equal(a->generation, b->generation);
    assert_int_equal(a->group_rank, b->group_rank);
    assert_int_equal(a->port, b->port);
    assert_int_equal(a->restarts, b->restarts);
    assert_int_equal(a->changes, b->changes);
    assert_int_equal(a->drain, b->drain);
    assert_int_equal(a->stop_signal, b->stop_signal);
    assert_int_equal(a->quiet, b->quiet);
    assert_int_equal(a->keeps_keys, b->keeps_keys);
    assert_int_equal(a->cut_from, b->cut_from);
    assert_true(a->age_ns == b->age_ns);
    assert_cause_equal(&a->cause, &b->cause);
}

static void assert_hello_equal(const struct session_hello *a, const struct session_hello *b)
{
    assert_string_equal(a->job, b->job);
    assert_memory_equal(&a->params, &b->params, sizeof(a->params));
    assert_true(session_nonce_equal(a->nonce, b->nonce));
    assert_int_equal(a->attempt, b->attempt);
    assert_string_equal(a->host, b->host);
    assert_string_equal(a->addr, b->addr);
    assert_string_equal(a->own, b->own);
    assert_string_equal(a->role, b->role);
    assert_int_equal(a->n_workers, b->n_workers);
    assert_int_equal(a->node_rank, b->node_rank);
    assert_report_equal(&a->report, &b->report);
}

static struct session_json_message get_message(const struct buf *frame)
{
    struct wire_span body = body_of(frame);
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE] = "";

    if (!session_json_get_message(body.data, body.size, &message, error))
        fail_msg("%s", error);
    return message;
}

static void a_hello_comes_through(void **state)
{
    _cleanup_(buf_finish) struct buf frame = {0};
    struct session_json_message message;

    assert_int_equal(session_json_put_hello(&frame, &a_hello), 0);
    message = get_message(&frame);
    assert_int_equal(message.kind, SESSION_JSON_HELLO);
    assert_hello_equal(&message.hello, &a_hello);
}

static void a_report_comes_through(void **state)
{
    static const struct session_report none = {.phase = SESSION_READY,
                                               .generation = -1,
                                               .group_rank = -1,
                                               .cause = {.group_rank = -1, .rank = -1, .local_rank = -1}};
    const struct session_report *const reports[] = {&a_report, &none};

    for (size_t i = 0; i < ARRAY_SIZE(reports); i++) {
        _cleanup_(buf_finish) struct buf frame = {0};
        struct session_json_message message;

        assert_int_equal(session_json_put_report(&frame, reports[i]), 0);
        message = get_message(&frame);
        assert_int_equal(message.kind, SESSION_JSON_REPORT);
        assert_report_equal(&message.report, reports[i]);
    }
}

static struct session_view get_view(const struct buf *frame)
{
    struct wire_span body = body_of(frame);
    struct session_view view;
    char error[SESSION_JSON_ERROR_SIZE] = "";

    if (!session_json_get_view(body.data, body.size, &view, error))
        fail_msg("%s", error);
    return view;
}

static void a_start_comes_through(void **state)
{
    static const struct session_view start = {.kind = SESSION_VIEW_START,
                                              .instance = 1,
                                              .generation = 3,
                                              .restarts = 1,
                                              .changes = 2,
                                              .place = {3, 4, 24, 32, 8, 16, "10.0.0.1", 40001},
                                              .cause = A_CAUSE};
    _cleanup_(buf_finish) struct buf frame = {0};
    struct session_view view;

    assert_int_equal(session_json_put_view(&frame, &start), 0);
    view = get_view(&frame);
    assert_int_equal(view.kind, SESSION_VIEW_START);
    assert_int_equal(view.generation, 3);
    assert_int_equal(view.restarts, 1);
    assert_int_equal(view.changes, 2);
    assert_int_equal(view.place.group_rank, 3);
    assert_int_equal(view.place.group_world_size, 4);
    assert_int_equal(view.place.rank_base, 24);
    assert_int_equal(view.place.world_size, 32);
    assert_int_equal(view.place.role_rank_base, 8);
    assert_int_equal(view.place.role_world_size, 16);
    assert_string_equal(view.place.master_addr, "10.0.0.1");
    assert_int_equal(view.place.master_port, 40001);
    assert_cause_equal(&view.cause, &a_cause);
}

static void other_views_come_through(void **state)
{
    static const struct session_view views[] = {
        {.kind = SESSION_VIEW_WAIT,
         .generation = -1,
         .standby = true,
         .n_ready = 13,
         .min_nodes = 16,
         .max_nodes = 20,
         .n_missing = 2,
         .missing = {4, 16383}},
        {.kind = SESSION_VIEW_CONTINUE, .generation = 4, .drain = true, .quiet = true},
        {.kind = SESSION_VIEW_STOP, .generation = 4, .cause = A_CAUSE},
        {.kind = SESSION_VIEW_END, .generation = 4, .verdict = SESSION_VERDICT_FAILURE, .cause = A_CAUSE},
        {.kind = SESSION_VIEW_END, .verdict = SESSION_VERDICT_FAILURE, .stop_signal = SESSION_SIGNAL_MAX},
        {.kind = SESSION_VIEW_REFUSED, .generation = -1, .cause = A_CAUSE},
    };

    for (size_t i = 0; i < ARRAY_SIZE(views); i++) {
        _cleanup_(buf_finish) struct buf frame = {0};
        struct session_view view;

        assert_int_equal(session_json_put_view(&frame, &views[i]), 0);
        view = get_view(&frame);
        assert_int_equal(view.kind, views[i].kind);
        assert_int_equal(view.generation, views[i].generation);
        assert_int_equal(view.drain, views[i].drain);
        assert_int_equal(view.quiet, views[i].quiet);
        assert_int_equal(view.standby, views[i].standby);
        assert_int_equal(view.n_ready, views[i].n_ready);
        assert_int_equal(view.min_nodes, views[i].min_nodes);
        assert_int_equal(view.max_nodes, views[i].max_nodes);
        assert_int_equal(view.verdict, views[i].verdict);
        assert_int_equal(view.stop_signal, views[i].stop_signal);
        assert_int_equal(view.n_missing, views[i].n_missing);
        assert_memory_equal(view.missing, views[i].missing, view.n_missing * sizeof(view.missing[0]));
        assert_int_equal(view.cause.kind, views[i].cause.kind);
    }
}

/* Nothing a struct can hold makes a body too long, whatever it has to be escaped to. */
static void the_longest_texts_fit(void **state)
{
    _cleanup_(buf_finish) struct buf frame = {0};
    struct session_hello longest = a_hello;
    struct session_json_message message;

    memset(longest.job, 1, sizeof(longest.job) - 1);
    memset(longest.host, 1, sizeof(longest.host) - 1);
    memset(longest.addr, 1, sizeof(longest.addr) - 1);
    memset(longest.own, 1, sizeof(longest.own) - 1);
    memset(longest.role, 1, sizeof(longest.role) - 1);
    memset(longest.report.cause.host, 1, sizeof(longest.report.cause.host) - 1);
    memset(longest.report.cause.text, 1, sizeof(longest.report.cause.text) - 1);
    longest.report.cause.text[SESSION_TEXT_SIZE - 1] = 0;
    assert_int_equal(session_json_put_hello(&frame, &longest), 0);
    text_clean(longest.report.cause.host);
    text_clean(longest.report.cause.text);
    message = get_message(&frame);
    assert_hello_equal(&message.hello, &longest);
}

static bool read_renewal(const char *body, uint32_t *ret)
{
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];

    if (!session_json_get_message((const uint8_t *)body, strlen(body), &message, error) ||
        message.kind != SESSION_JSON_RENEW)
        return false;
    *ret = message.renewal;
    return true;
}

static void renewals_come_through(void **state)
{
    static const char *const bad[] = {"{\"renew\":}",   "{\"renew\":4294967296}", "{\"renew\":-1}",
                                      "{\"renew\":12",  "{\"renew\":1e3}",        "{\"renewed\":1}",
                                      "{\"renew\":1} ", "{\"renew\":00000000001}"};
    struct buf frame = {0};
    uint32_t number = 0;

    assert_int_equal(session_json_put_renew(&frame, UINT32_MAX), 0);
    assert_memory_equal(buf_bytes(&frame) + 4, "{\"renew\":4294967295}", buf_size(&frame) - 4);
    assert_true(read_renewal("{\"renew\":4294967295}", &number));
    assert_int_equal(number, UINT32_MAX);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (read_renewal(bad[i], &number))
            fail_msg("'%s' was taken for a renewal", bad[i]);
    buf_reset(&frame);
    assert_int_equal(session_json_put_renewed(&frame, 17), 0);
    assert_true(session_json_get_renewed(buf_bytes(&frame) + 4, buf_size(&frame) - 4, &number));
    assert_int_equal(number, 17);
    assert_false(session_json_get_renewed((const uint8_t *)"{\"renew\":17}", 12, &number));
    buf_finish(&frame);
}

static void what_is_unknown_is_ignored(void **state)
{
    static const char body[] =
        "{\"report\":{\"phase\":\"ready\",\"moon\":\"full\",\"port\":7,\"x\":{\"phase\":1}},\"y\":[]}";
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];

    assert_true(session_json_get_message((const uint8_t *)body, strlen(body), &message, error));
    assert_int_equal(message.report.phase, SESSION_READY);
    assert_int_equal(message.report.port, 7);
    assert_int_equal(message.report.generation, -1);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *body, *said;
    } cases[] = {
        {"", "a body of 0 bytes is not JSON"},
        {"{\"report\":", "is not JSON"},
        {"7", "a report cannot be understood: it is not an object"},
        {"{}", "a report cannot be understood: it is not an object"},
        {"{\"report\":{}}", "'phase' is missing"},
        {"{\"report\":{\"phase\":\"dancing\"}}", "'phase' is not one of the words for it"},
        {"{\"report\":{\"phase\":3}}", "'phase' is not one of the words for it"},
        {"{\"report\":{\"phase\":\"ready\",\"port\":65536}}",
         "'port' is not a whole number between 0 and 65535"},
        {"{\"report\":{\"phase\":\"ready\",\"port\":1.5}}",
         "'port' is not a whole number between 0 and 65535"},
        {"{\"report\":{\"phase\":\"ready\",\"port\":\"7\"}}",
         "'port' is not a whole number between 0 and 65535"},
        {"{\"report\":{\"phase\":\"ready\",\"age_ns\":1e300}}", "'age_ns' is not a whole number between 0"},
        {"{\"report\":{\"phase\":\"ready\",\"drain\":1}}", "'drain' is neither true nor false"},
        {"{\"report\":{\"phase\":\"ready\",\"instance\":\"12\"}}", "'instance' is not 16 hexadecimal digits"},
        {"{\"report\":{\"phase\":\"ready\",\"cause\":{\"kind\":\"worker\",\"host\":9}}}",
         "'host' is not a text below 256"},
        {"{\"hello\":2}", "the agent speaks version 2 of the agent session and this rendezvous version 1"},
        {"{\"hello\":\"1\"}", "version 0"},
        {"{\"hello\":1}", "a hello cannot be understood: 'job' is missing"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct session_json_message message;
        char error[SESSION_JSON_ERROR_SIZE] = "";

        assert_false(
            session_json_get_message((const uint8_t *)cases[i].body, strlen(cases[i].body), &message, error));
        if (!strstr(error, cases[i].said))
            fail_msg("'%s' does not say '%s'", error, cases[i].said);
    }
}

static void a_text_that_is_too_long_is_refused(void **state)
{
    _cleanup_(buf_finish) struct buf body = {0};
    struct session_view view;
    char error[SESSION_JSON_ERROR_SIZE];

    assert_int_equal(buf_append(&body, "{\"view\":\"stop\",\"cause\":{\"text\":\"", 32), 0);
    for (int i = 0; i < SESSION_TEXT_SIZE; i++)
        assert_int_equal(buf_append(&body, "x", 1), 0);
    assert_int_equal(buf_append(&body, "\"}}", 3), 0);
    assert_false(session_json_get_view(buf_bytes(&body), buf_size(&body), &view, error));
    assert_non_null(strstr(error, "'text' is not a text below 512 bytes"));
}

static void a_start_without_a_place_is_refused(void **state)
{
    static const char body[] = "{\"view\":\"start\",\"generation\":1}";
    struct session_view view;
    char error[SESSION_JSON_ERROR_SIZE];

    assert_false(session_json_get_view((const uint8_t *)body, strlen(body), &view, error));
    assert_non_null(strstr(error, "a view cannot be understood"));
}

/* What each agent is told in a round does not grow with the number of agents. */
static void a_start_is_small(void **state)
{
    static const struct session_view start = {.kind = SESSION_VIEW_START,
                                              .instance = UINT64_MAX,
                                              .generation = 999,
                                              .restarts = 999,
                                              .changes = 999,
                                              .place = {16383, 16384, 67108863, 67108864, 67108863, 67108864,
                                                        "2001:db8:1234:5678:9abc:def0:1234:5678", 65535}};
    _cleanup_(buf_finish) struct buf frame = {0};

    assert_int_equal(session_json_put_view(&frame, &start), 0);
    assert_in_range(buf_size(&frame), 1, 384);
}

/* Agents print the causes that other nodes sent: no terminal may obey them, and no line be forged. */
static void causes_are_made_printable(void **state)
{
    struct session_report report = a_report;
    struct session_json_message got;
    char error[SESSION_JSON_ERROR_SIZE];
    struct buf frame = {0};
    struct wire_span body;

    (void)strcpy(report.cause.host, "n\033]0;x\007");
    (void)strcpy(report.cause.text,
                 "a\r\ncrun: all is well\t\xC2\x9B"
                 "2J \xC3\xA4\177");
    assert_int_equal(session_json_put_report(&frame, &report), 0);
    body = body_of(&frame);
    assert_true(session_json_get_message(body.data, body.size, &got, error));
    assert_string_equal(got.report.cause.host, "n?]0;x?");
    assert_string_equal(got.report.cause.text, "a  crun: all is well ?2J \xC3\xA4?");
    buf_finish(&frame);
}

static void texts_are_cut_between_characters(void **state)
{
    char text[8];

    text_copy(text, sizeof(text), "123456\xc3\xa4");
    assert_string_equal(text, "123456");
    text_copy(text, sizeof(text), "12345\xc3\xa4");
    assert_string_equal(text, "12345\xc3\xa4");
    text_copy(text, sizeof(text), "1234567890");
    assert_string_equal(text, "1234567");
    text_copy(text, sizeof(text), "1234\xf0\x9f\x98\x80");
    assert_string_equal(text, "1234");
    text_copy(text, sizeof(text), "\x80\x80\x80\x80\x80\x80\x80\x80\x80");
    assert_string_equal(text, "\x80\x80\x80\x80\x80\x80\x80"); /* not UTF-8: nothing of it may be lost */
    text_copy(text, sizeof(text), "");
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_comes_through),
        cmocka_unit_test(a_report_comes_through),
        cmocka_unit_test(a_start_comes_through),
        cmocka_unit_test(other_views_come_through),
        cmocka_unit_test(the_longest_texts_fit),
        cmocka_unit_test(renewals_come_through),
        cmocka_unit_test(what_is_unknown_is_ignored),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_text_that_is_too_long_is_refused),
        cmocka_unit_test(a_start_without_a_place_is_refused),
        cmocka_unit_test(a_start_is_small),
        cmocka_unit_test(causes_are_made_printable),
        cmocka_unit_test(texts_are_cut_between_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
