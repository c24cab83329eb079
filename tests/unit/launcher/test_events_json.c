/* Lines of --event-log and of torchrun's console handler. */

#include <cjson/cJSON.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/report/events.h"
#include "base/err.h"
#include "base/utf8.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct event_job job = {.run_id = "job",
                                     .run = "1-2",
                                     .worker_run_id = "job",
                                     .host = "node1",
                                     .role = "trainer",
                                     .program = "train",
                                     .entry_point = "train",
                                     .rdzv_backend = "c10d",
                                     .n_workers = 2,
                                     .max_restarts = 3,
                                     .crun = 100,
                                     .place = {.group_rank = 1,
                                               .group_world_size = 2,
                                               .rank_base = 4,
                                               .world_size = 6,
                                               .role_rank_base = 1,
                                               .role_world_size = 3}};

static void assert_line(const struct event *event, const char *after_monotonic)
{
    static const char head[] =
        "{\"time\":\"2009-02-13T23:31:30.000000123Z\",\"monotonic_ns\":9007199254740993,";
    struct event e = *event;

    e.time_ns = 1234567890 * INT64_C(1000000000) + 123;
    e.monotonic_ns = 9007199254740993; /* one more than a double holds */
    e.generation = 2;
    e.restarts = 1;
    char *line = events_json_line(&job, &e);
    assert_non_null(line);
    assert_memory_equal(line, head, strlen(head));
    assert_string_equal(line + strlen(head), after_monotonic);
    free(line);
}

#define USUAL                                                                                                \
    "\"run_id\":\"job\",\"run\":\"1-2\",\"host\":\"node1\",\"group_rank\":1,\"generation\":2,\"restarts\":1"

static void test_every_kind(void **state)
{
    const struct event_ending died = {
        .local_rank = 1, .pid = 7, .code = -SIGSEGV, .core_dumped = true, .max_rss_kib = 5, .ran_ns = 11};
    const struct event_ending left = {.local_rank = 0, .pid = 8, .code = 3, .stopped = true};
    const struct event_ending never_ran = {.local_rank = 0, .code = 127};
    const pid_t pids[] = {7, 8};
    const struct event_peer lost = {.host = "node3", .group_rank = 2, .rank = -1};
    const struct event_peer failed = {.host = "", .group_rank = -1, .rank = 5};

    assert_line(
        &(struct event){.kind = EVENT_PEER, .cause = "lost", .peer = &lost, .reason = "node3 was lost"},
        "\"event\":\"peer\"," USUAL
        ",\"cause\":\"lost\",\"peer_host\":\"node3\",\"peer_group_rank\":2,\"reason\":\"node3 was lost\"}\n");
    assert_line(&(struct event){.kind = EVENT_PEER, .cause = "worker", .peer = &failed},
                "\"event\":\"peer\"," USUAL ",\"cause\":\"worker\",\"peer_rank\":5}\n");

    assert_line(&(struct event){.kind = EVENT_START},
                "\"event\":\"start\"," USUAL
                ",\"crun_pid\":100,\"program\":\"train\",\"role\":\"trainer\","
                "\"local_world_size\":2,\"world_size\":6,\"group_world_size\":2,\"max_restarts\":3}\n");
    assert_line(&(struct event){.kind = EVENT_READY, .pids = pids, .took_ns = 9},
                "\"event\":\"ready\"," USUAL ",\"pids\":[7,8],\"took_ns\":9}\n");
    assert_line(&(struct event){.kind = EVENT_EXIT, .ending = &died},
                "\"event\":\"exit\"," USUAL
                ",\"local_rank\":1,\"rank\":5,\"pid\":7,\"signal\":\"SIGSEGV\","
                "\"core_dumped\":true,\"stopped_by_crun\":false,\"max_rss_kib\":5,\"ran_ns\":11}\n");
    assert_line(&(struct event){.kind = EVENT_EXIT, .ending = &left},
                "\"event\":\"exit\"," USUAL
                ",\"local_rank\":0,\"rank\":4,\"pid\":8,\"exit_code\":3,"
                "\"stopped_by_crun\":true,\"max_rss_kib\":0,\"ran_ns\":0}\n");
    assert_line(
        &(struct event){
            .kind = EVENT_FAILURE, .cause = "exec", .number = 2, .ending = &never_ran, .reason = "no"},
        "\"event\":\"failure\"," USUAL
        ",\"cause\":\"exec\",\"errno\":2,\"local_rank\":0,\"rank\":4,"
        "\"reason\":\"no\"}\n");
    assert_line(&(struct event){.kind = EVENT_STOP, .number = SIGTERM, .sender = 12},
                "\"event\":\"stop\"," USUAL ",\"signal\":\"SIGTERM\",\"sender_pid\":12}\n");
    assert_line(&(struct event){.kind = EVENT_STOP, .number = 63},
                "\"event\":\"stop\"," USUAL ",\"signal\":\"SIGRTMIN+29\"}\n");
    assert_line(&(struct event){.kind = EVENT_RESTART, .left = 2},
                "\"event\":\"restart\"," USUAL ",\"restarts_left\":2}\n");
    assert_line(
        &(struct event){.kind = EVENT_END, .cause = "failed", .number = 1, .took_ns = 10, .reason = "r"},
        "\"event\":\"end\"," USUAL
        ",\"program\":\"train\",\"result\":\"failed\",\"exit_code\":1,\"took_ns\":10,\"reason\":\"r\"}\n");
}

static void test_text_of_any_origin(void **state)
{
    static const struct {
        const char *text, *answer;
    } cases[] = {
        {"a\n\"b\\", "a\\n\\\"b\\\\"},
        {"\xc3\xa9", "\xc3\xa9"},
        {"\xe2\x82", "??"},
        {"\xff"
         "x",
         "?x"},
        {"\xc0\xaf", "??"},
        {"\xed\xa0\x80", "???"},
        {"\xf0\x9f\x92\xa9", "\xf0\x9f\x92\xa9"},
        {"\xf4\x90\x80\x80", "????"},
        {"\x1b", "\\u001b"},
        {"", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char answer[64];
        cJSON *object = cJSON_CreateObject();

        events_add_text(object, "t", cases[i].text);
        char *line = events_print(object);
        (void)snprintf(answer, sizeof(answer), "{\"t\":\"%s\"}\n", cases[i].answer);
        assert_string_equal(line, answer);
        free(line);
    }
}

/* The lines of a report on a hang, whose ends are no reason for a line that is no JSON. */
static void test_lines_of_any_origin(void **state)
{
    cJSON *object = cJSON_CreateObject();
    char text[16384] = "  a\xC3\n";

    for (int i = 0; i < 3000; i++)
        (void)strcat(text, "\xE2\x82\xAC");
    events_add_lines(object, "l", text);
    const cJSON *list = cJSON_GetObjectItem(object, "l");
    assert_int_equal(cJSON_GetArraySize(list), 2);
    assert_string_equal(cJSON_GetArrayItem(list, 0)->valuestring, "a?");
    const char *second = cJSON_GetArrayItem(list, 1)->valuestring;
    assert_in_range(strlen(second), 1000, 4096);
    for (const unsigned char *s = (const unsigned char *)second; *s; s += utf8_sequence(s))
        assert_int_not_equal(utf8_sequence(s), 0);
    cJSON_Delete(object);
}

static void test_facts_of_a_stall(void **state)
{
    static const struct {
        int rank;
        struct event_stall stall;
        const char *answer;
    } cases[] = {
        {3,
         {5, 12000, "reads", 1000000},
         "\"rank\":3,\"waiting\":5,\"waits_ms\":12000,\"activity\":\"reads\",\"bytes_per_s\":1000000,\"groups\":[]}\n"},
        {0,
         {1, 9000, "ended", 0},
         "\"rank\":0,\"waiting\":1,\"waits_ms\":9000,\"activity\":\"ended\",\"groups\":[]}\n"},
        {-1,
         {2, 9000, "unknown", 0},
         "\"restarts\":0,\"waiting\":2,\"waits_ms\":9000,\"activity\":\"unknown\",\"groups\":[]}\n"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const struct event_hang hang = {.rank = cases[i].rank, .stall = &cases[i].stall};
        char *line = events_json_line(&job, &(struct event){.kind = EVENT_STALL, .hang = &hang});

        if (!strstr(line, cases[i].answer))
            fail_msg("row %zu: %s", i, line);
        free(line);
    }
}

static void test_torch_lines(void **state)
{
    const struct event_ending ending = {.local_rank = 1, .pid = 7, .code = 3};
    char *line = events_torch_line(&job, &(struct event_torch){.state = "FAILED",
                                                               .worker = &ending,
                                                               .knows_ending = true,
                                                               .raw_error = "{}",
                                                               .restarts = 2,
                                                               .run_s = 4,
                                                               .duration_ms = -1});

    assert_string_equal(
        line,
        "{\"name\":\"torchelastic.worker.status.FAILED\",\"source\":\"WORKER\",\"timestamp\":0,\"metadata\":{"
        "\"run_id\":\"job\",\"global_rank\":5,\"group_rank\":1,\"worker_id\":\"7\",\"role\":\"trainer\","
        "\"hostname\":\"node1\",\"state\":\"FAILED\",\"total_run_time\":4,\"rdzv_backend\":\"c10d\","
        "\"raw_error\":\"{}\",\"metadata\":\"{\\\"group_world_size\\\":2,\\\"entry_point\\\":\\\"train\\\","
        "\\\"local_rank\\\":[1],\\\"role_rank\\\":[2],\\\"role_world_size\\\":[3],\\\"exit_code\\\":[3],"
        "\\\"worker_pid\\\":[7]}\",\"agent_restarts\":2,\"duration_ms\":null}}\n");
    free(line);
    line = events_torch_line(
        &job, &(struct event_torch){.state = "RENDEZVOUS", .is_first = true, .duration_ms = 1.5});
    assert_non_null(strstr(line, "\"source\":\"AGENT\""));
    assert_non_null(strstr(line, "\"global_rank\":null,\"group_rank\":null,\"worker_id\":null"));
    assert_non_null(strstr(line, "{\\\"group_world_size\\\":null,\\\"entry_point\\\":\\\"train\\\"}"));
    assert_non_null(strstr(line, "\"duration_ms\":1.5}}\n"));
    free(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),          cmocka_unit_test(test_text_of_any_origin),
        cmocka_unit_test(test_lines_of_any_origin), cmocka_unit_test(test_facts_of_a_stall),
        cmocka_unit_test(test_torch_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
