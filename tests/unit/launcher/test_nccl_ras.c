/* NCCL's RAS answer: the rank that is behind is found, whatever the text is. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "launcher/watch/nccl_ras_json.h"
#include "launcher/watch/stack_tool_os.h"

#include "tests/support/c/cmocka_fixed.h"

enum { RANKS_MAX = 8 };

static const struct stack_job jobs[] = {{.pid = 70}, {.pid = 0}};

/* A communicator; launched: all-reduces and all-gathers of each rank. */
struct communicator {
    const char *hash;
    int n_ranks, pids[RANKS_MAX], launched[RANKS_MAX][2];
    int n_missing; /* the last ranks */
    bool is_reachable;
};

/* As NCCL lays it out (src/ras/client_support.cc). */
static void add_rank(struct strbuf *t, const struct communicator *c, int rank)
{
    strbuf_add(
        t,
        "%s        {\n          \"rank\": %d,\n          \"host\": \"10.0.0.1\",\n          \"pid\": %d,\n"
        "          \"cuda_dev\": 0,\n          \"nvml_dev\": 0,\n          \"status\": {\n"
        "            \"init_state\": 0,\n            \"async_error\": 0,\n            \"finalize_called\": false,\n"
        "            \"destroy_flag\": false,\n            \"abort_flag\": false\n          },\n"
        "          \"collective_counts\": {\n            \"Broadcast\": 1,\n            \"Reduce\": 0,\n"
        "            \"AllGather\": %d,\n            \"ReduceScatter\": 0,\n            \"AllReduce\": %d\n"
        "          }\n        }",
        rank ? ",\n" : "", rank, c->pids[rank], c->launched[rank][1], c->launched[rank][0]);
}

/* comma: of 2.29 and later, which 2.28.9 leaves out. */
static void add_missing(struct strbuf *t, const struct communicator *c, int rank, const char *comma)
{
    strbuf_add(
        t,
        "%s        {\n          \"rank\": %d,\n          \"host\": \"10.0.0.1\",\n          \"pid\": %d,\n"
        "          \"cuda_dev\": 0,\n          \"nvml_dev\": 0%s\n          \"status\": {\n"
        "            \"unresponsive\": %s,\n            \"considered_dead\": false\n          }\n        }",
        rank > c->n_ranks - c->n_missing ? ",\n" : "", rank, c->pids[rank], comma,
        c->is_reachable ? "false" : "true");
}

static char *answer(const struct communicator *comms, size_t n, const char *comma)
{
    struct strbuf t = {0};

    strbuf_add(&t,
               "OK\n{\n  \"nccl_version\": \"2.28.9\",\n  \"cuda_runtime_version\": 13000,\n"
               "  \"communicators_count\": %zu,\n  \"communicators\": [\n",
               n);
    for (size_t i = 0; i < n; i++) {
        const struct communicator *c = &comms[i];
        int n_there = c->n_ranks - c->n_missing;

        strbuf_add(
            &t,
            "%s    {\n      \"hash\": \"%s\",\n      \"secondary_hash\": \"0x1:0x2\",\n      \"size\": %d,\n"
            "      \"ranks_count\": %d,\n      \"missing_ranks_count\": %d,\n      \"ranks\": [\n",
            i ? ",\n" : "", c->hash, c->n_ranks, n_there, c->n_missing);
        for (int rank = 0; rank < n_there; rank++)
            add_rank(&t, c, rank);
        strbuf_add(&t, "\n      ],\n      \"missing_ranks\": [\n");
        for (int rank = n_there; rank < c->n_ranks; rank++)
            add_missing(&t, c, rank, comma);
        strbuf_add(&t, "\n      ]\n    }");
    }
    strbuf_add(
        &t, "\n  ],\n  \"ras\": {\n    \"collection_time_sec\": 0.001,\n    \"timeouts_count\": 0\n  }\n}\n");
    return strbuf_steal(&t);
}

static void expect(const struct communicator *comms, size_t n, const char *comma, const char *expected)
{
    char *text = answer(comms, n, comma), line[HANG_NCCL_SIZE];
    struct buf json = {0};

    assert_int_equal(nccl_ras_read(text, strlen(text), jobs, 2, &json, line), 0);
    assert_string_equal(line, expected);
    assert_int_equal(*buf_bytes(&json), '{');
    assert_int_equal(buf_size(&json), strlen(text) - 3 + (*comma ? 0 : (size_t)comms->n_missing));
    buf_finish(&json);
    free(text);
}

static void a_rank_that_is_behind_is_named(void **state)
{
    const struct communicator skips = {"0xabc", 4,    {70, 71, 72, 73}, {{42, 3}, {42, 3}, {41, 3}, {42, 3}},
                                       0,       false};
    const struct communicator two = {"0xabc", 4,    {70, 71, 72, 73}, {{42, 3}, {41, 3}, {40, 3}, {42, 3}},
                                     0,       false};
    /* Rank 0 is in another collective than the others: as many in all. */
    const struct communicator order = {"0xabc", 4,    {70, 71, 72, 73}, {{42, 4}, {43, 3}, {43, 3}, {43, 3}},
                                       0,       false};
    const struct communicator even = {"0xabc", 2, {70, 71}, {{42, 3}, {42, 3}}, 0, false};

    (void)state;
    expect(
        &skips, 1, ",",
        "  NCCL: rank 2 (10.0.0.1, pid 72) of communicator 0xabc of 4 ranks has launched 41 AllReduce, others 42\n");
    expect(
        &two, 1, ",",
        "  NCCL: rank 2 (10.0.0.1, pid 72) of communicator 0xabc of 4 ranks has launched 40 AllReduce, others 42;"
        " likewise 1 more\n");
    expect(
        &order, 1, ",",
        "  NCCL: rank 0 (10.0.0.1, pid 70) of communicator 0xabc of 4 ranks has launched 42 AllReduce, others 43\n");
    expect(&even, 1, ",", "");
}

static void a_rank_that_does_not_answer_is_named(void **state)
{
    struct communicator c = {"0xabc", 4, {70, 71, 72, 73}, {{42, 3}, {41, 3}}, 2, false};
    static const char expected[] =
        "  NCCL: rank 2 (10.0.0.1, pid 72) of communicator 0xabc of 4 ranks does not answer NCCL's RAS;"
        " likewise 1 more\n";

    (void)state;
    expect(&c, 1, ",", expected);
    expect(&c, 1, "", expected); /* as 2.28.9 */
    c.launched[1][0] = 42;
    c.is_reachable = true; /* they have left the communicator */
    expect(&c, 1, ",", "");
}

/* 70 waits for 71 in a group of two, so 70 is late for 72 in another group; the order of the groups does not matter. */
static void a_rank_that_waits_elsewhere_is_not_blamed(void **state)
{
    const struct communicator a = {"0xa", 2, {70, 71}, {{10, 0}, {9, 0}}, 0, false};
    const struct communicator b = {"0xb", 2, {70, 72}, {{4, 0}, {90, 0}}, 0, false};
    static const char expected[] =
        "  NCCL: rank 1 (10.0.0.1, pid 71) of communicator 0xa of 2 ranks has launched 9 AllReduce, others 10\n";

    (void)state;
    expect((struct communicator[]){a, b}, 2, ",", expected);
    expect((struct communicator[]){b, a}, 2, ",", expected);
}

static void an_answer_of_another_job_gives_no_line(void **state)
{
    const struct communicator c = {"0xabc", 2, {70, 71}, {{42, 3}, {41, 3}}, 0, false};
    char *text = answer(&c, 1, ","), line[HANG_NCCL_SIZE];

    (void)state;
    for (int pid = 69; pid <= 72; pid++) {
        const struct stack_job one = {.pid = pid};
        struct buf json = {0};

        assert_int_equal(nccl_ras_read(text, strlen(text), &one, 1, &json, line), 0);
        assert_int_equal(*line == '\0', pid == 69 || pid == 72);
        buf_finish(&json);
    }
    free(text);
}

/* Numbers and texts of any size and kind: the line stays printable, and fits. */
static void a_hostile_answer_is_bounded(void **state)
{
    static const char *const texts[] = {
        "{\"communicators\": [{\"hash\": \"\\u001b[2J\\n%s%n;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;\", \"size\": 1e300, \"ranks\": ["
        "{\"rank\": -5, \"pid\": 9007199254740991, \"host\": \"\xff\xfe;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;\", "
        "\"collective_counts\": {\"%s%s;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;;\": 9007199254740990, \"b\": 0}},"
        "{\"collective_counts\": {\"a\": 9007199254740991, \"b\": 9007199254740991}}]}]}",
        "{\"communicators\": [1, [], {\"ranks\": {\"a\": 1, \"b\": {}}, \"missing_ranks\": 7}, {\"ranks\": [{\"collective_counts\": [1, 2]},"
        " {\"collective_counts\": \"x\", \"pid\": \"y\", \"host\": 3}]}]}",
    };
    char line[HANG_NCCL_SIZE];

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct buf json = {0};

        assert_int_equal(nccl_ras_read(texts[i], strlen(texts[i]), jobs, 2, &json, line), 0);
        assert_int_equal(strncmp(line, "  NCCL: rank 0 (", 16), 0);
        assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
        for (const char *c = line; *c != '\n'; c++)
            assert_in_range(*c, ' ', '~');
        buf_finish(&json);
    }
}

static void what_is_no_json_is_refused(void **state)
{
    static const char *const texts[] = {
        "",     "ERROR: Unknown command set format json\nNCCL version 2.27.3\n",
        "OK\n", "OK\n{",
        "{}",   "{\"communicators\": 3}"};
    char line[HANG_NCCL_SIZE];
    struct buf json = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (nccl_ras_read(texts[i], strlen(texts[i]), jobs, 2, &json, line) != -EBADMSG || *line || json.data)
            fail_msg("row %zu", i);
    assert_int_equal(nccl_ras_read(NULL, 0, jobs, 2, &json, line), -EBADMSG);

    /* Too deep for the parser's stack; more values than any job has. */
    enum { N = 3 << 20, HEAD = 19 };
    char *many = malloc(N);
    memset(many, '[', N);
    memcpy(many, "{\"communicators\": [", HEAD);
    assert_int_equal(nccl_ras_read(many, 1 << 18, jobs, 2, &json, line), -EBADMSG);
    size_t n = HEAD;
    for (; n + 10 < N; n += 3)
        memcpy(many + n, "{},", 3);
    memcpy(many + n, "{}]}", 4);
    assert_int_equal(nccl_ras_read(many, n + 4, jobs, 2, &json, line), -EBADMSG);
    memcpy(many + HEAD + 300, "{}]}", 4);
    assert_int_equal(nccl_ras_read(many, HEAD + 304, jobs, 2, &json, line), 0);
    buf_reset(&json);
    assert_null(json.data);
    free(many);
}

/* Each cut of the text, and each changed byte. */
static void broken_text_is_refused_or_read(void **state)
{
    const struct communicator c = {"0xabc", 3, {70, 71, 72}, {{42, 3}, {41, 3}}, 1, false};
    char *text = answer(&c, 1, ""), line[HANG_NCCL_SIZE];
    size_t n = strlen(text), n_read = 0;
    struct buf json = {0};

    (void)state;
    for (size_t i = 0; i < n; i++) {
        char *cut = malloc(i + 1); /* for the address sanitizer: exactly as long */

        memcpy(cut, text, i);
        int result = nccl_ras_read(cut, i, jobs, 2, &json, line);
        assert_true(result == -EBADMSG || (result == 0 && i + 2 >= n));
        free(cut);
        buf_reset(&json);
        char was = text[i];
        text[i] = (char)(was ^ 0x15);
        result = nccl_ras_read(text, n, jobs, 2, &json, line);
        assert_true(result == 0 || result == -EBADMSG);
        n_read += result == 0;
        text[i] = was;
        buf_reset(&json);
    }
    assert_true(n_read > 0 && n_read < n);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_is_behind_is_named),
        cmocka_unit_test(a_rank_that_does_not_answer_is_named),
        cmocka_unit_test(a_rank_that_waits_elsewhere_is_not_blamed),
        cmocka_unit_test(an_answer_of_another_job_gives_no_line),
        cmocka_unit_test(a_hostile_answer_is_bounded),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(broken_text_is_refused_or_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
