/*
 * The gateway of etcd as text: bodies as a real etcd 3.4 takes and answers them, the error forms of the other releases, what
 * is not understood, and addresses on the command line.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "rendezvous/etcd/etcd.h"
#include "rendezvous/etcd/etcd_json.h"

#include "tests/support/c/cmocka_fixed.h"

static void check_body(struct etcd_request *r, const char *path, const char *expected)
{
    struct buf out = {0};

    assert_string_equal(etcd_json_path(r), path);
    assert_int_equal(etcd_json_put(&out, r), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(&out), expected);
    buf_finish(&out);
    etcd_request_finish(r);
}

static void test_simple_bodies(void **state)
{
    check_body(&(struct etcd_request){.kind = ETCD_AUTHENTICATE, .key = "crund", .end = "pw"},
               "/v3/auth/authenticate", "{\"name\":\"crund\",\"password\":\"pw\"}");
    check_body(&(struct etcd_request){.kind = ETCD_GRANT, .ttl_s = 2}, "/v3/lease/grant", "{\"TTL\":\"2\"}");
    check_body(&(struct etcd_request){.kind = ETCD_KEEPALIVE, .lease = INT64_MAX}, "/v3/lease/keepalive",
               "{\"ID\":\"9223372036854775807\"}");
    check_body(&(struct etcd_request){.kind = ETCD_RANGE, .key = "/a", .end = "/b", .limit = 9},
               "/v3/kv/range", "{\"key\":\"L2E=\",\"range_end\":\"L2I=\",\"limit\":\"9\"}");
    check_body(&(struct etcd_request){.kind = ETCD_RANGE, .key = "/a"}, "/v3/kv/range", "{\"key\":\"L2E=\"}");
}

static void test_brief_requests(void **state)
{
    static const struct {
        struct etcd_request request;
        bool is_brief;
    } rows[] = {
        {{.kind = ETCD_GRANT}, true},
        {{.kind = ETCD_KEEPALIVE}, true},
        {{.kind = ETCD_RANGE, .key = "/a"}, true},
        {{.kind = ETCD_RANGE, .key = "/a", .end = "/b", .limit = 64}, false},
        {{.kind = ETCD_TXN, .key = "/a"}, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        assert_int_equal(etcd_request_is_brief(&rows[i].request), rows[i].is_brief);
}

static void test_txn_body(void **state)
{
    struct etcd_request r = {.kind = ETCD_TXN, .key = "abc", .revision = 7};
    struct etcd_op *op;

    assert_true(etcd_request_put(&r, "abc", "def", 3, 77));
    assert_true(etcd_request_put(&r, "e", NULL, 0, 0));
    op = etcd_request_add(&r, ETCD_DELETE, "a");
    (void)strcpy(op->end, "b");
    (void)etcd_request_add(&r, ETCD_DELETE, "c");
    check_body(
        &r, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"YWJj\",\"target\":\"MOD\",\"result\":\"EQUAL\",\"mod_revision\":\"7\"}],"
        "\"success\":[{\"request_put\":{\"key\":\"YWJj\",\"value\":\"ZGVm\",\"lease\":\"77\"}},"
        "{\"request_put\":{\"key\":\"ZQ==\",\"value\":\"\"}},"
        "{\"request_delete_range\":{\"key\":\"YQ==\",\"range_end\":\"Yg==\"}},"
        "{\"request_delete_range\":{\"key\":\"Yw==\"}}],"
        "\"failure\":[{\"request_range\":{\"key\":\"YWJj\"}}]}");
}

static void test_txn_has_bounds(void **state)
{
    struct etcd_request r = {.kind = ETCD_TXN};
    static uint8_t bytes[ETCD_REQUEST_MAX];

    assert_false(etcd_request_put(&r, "a", bytes, sizeof(bytes), 0));
    assert_true(etcd_request_put(&r, "a", bytes, sizeof(bytes) / 2, 0));
    assert_false(etcd_request_put(&r, "b", bytes, sizeof(bytes) / 2, 0));
    while (r.n_ops < ETCD_OPS_MAX)
        assert_non_null(etcd_request_add(&r, ETCD_DELETE, "x"));
    assert_null(etcd_request_add(&r, ETCD_DELETE, "x"));
    assert_false(etcd_request_has_room(&r, 0));
    etcd_request_finish(&r);
}

static struct etcd_reply reply_of(unsigned kind, int status, const char *body)
{
    struct etcd_reply reply;

    etcd_json_get(kind, status, (const uint8_t *)body, strlen(body), &reply);
    return reply;
}

#define HEADER "\"header\":{\"cluster_id\":\"15118495548433857066\",\"revision\":\"3\",\"raft_term\":\"2\"}"

static void test_range_reply(void **state)
{
    struct etcd_reply r = reply_of(
        ETCD_RANGE, 200,
        "{" HEADER
        ",\"kvs\":[{\"key\":\"YWJj\",\"create_revision\":\"2\",\"mod_revision\":\"3\",\"version\":\"2\","
        "\"value\":\"ZGVm\",\"lease\":\"-5\"},{\"key\":\"ZQ==\",\"mod_revision\":1}],\"more\":true,\"count\":\"9\"}");

    assert_int_equal(r.outcome, ETCD_OK);
    assert_int_equal(r.revision, 3);
    assert_int_equal(r.n_pairs, 2);
    assert_string_equal(r.pairs[0].key, "abc");
    assert_int_equal(r.pairs[0].mod_revision, 3);
    assert_int_equal(r.pairs[0].lease, -5);
    assert_int_equal(buf_size(&r.pairs[0].value), 3);
    assert_memory_equal(buf_bytes(&r.pairs[0].value), "def", 3);
    assert_int_equal(r.pairs[1].mod_revision, 1);
    assert_int_equal(buf_size(&r.pairs[1].value), 0);
    assert_true(r.more);
    etcd_reply_finish(&r);
    r = reply_of(ETCD_RANGE, 200, "{" HEADER "}");
    assert_int_equal(r.outcome, ETCD_OK);
    assert_int_equal(r.n_pairs, 0);
    assert_false(r.more);
    etcd_reply_finish(&r);
}

static void test_txn_reply(void **state)
{
    struct etcd_reply r =
        reply_of(ETCD_TXN, 200,
                 "{" HEADER
                 ",\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{\"revision\":\"3\"}}}]}");

    assert_int_equal(r.outcome, ETCD_OK);
    assert_true(r.succeeded);
    etcd_reply_finish(&r);
    r = reply_of(
        ETCD_TXN, 200,
        "{" HEADER
        ",\"responses\":[{\"response_range\":{\"header\":{\"revision\":\"2\"},\"kvs\":[{\"key\":\"YWJj\","
        "\"mod_revision\":\"2\",\"value\":\"ZGVm\"}],\"count\":\"1\"}}]}");
    assert_int_equal(r.outcome, ETCD_OK);
    assert_false(r.succeeded);
    assert_int_equal(r.n_pairs, 1);
    assert_int_equal(r.pairs[0].mod_revision, 2);
    etcd_reply_finish(&r);
}

static void test_lease_replies(void **state)
{
    struct etcd_reply r =
        reply_of(ETCD_GRANT, 200, "{" HEADER ",\"ID\":\"4111120196537461766\",\"TTL\":\"2\"}");

    assert_int_equal(r.outcome, ETCD_OK);
    assert_true(r.lease == INT64_C(4111120196537461766));
    assert_int_equal(r.ttl_s, 2);
    r = reply_of(ETCD_KEEPALIVE, 200, "{\"result\":{" HEADER ",\"ID\":\"123\",\"TTL\":\"5\"}}\n");
    assert_int_equal(r.outcome, ETCD_OK);
    assert_int_equal(r.ttl_s, 5);
    r = reply_of(ETCD_KEEPALIVE, 200, "{\"result\":{" HEADER ",\"ID\":\"123\"}}\n");
    assert_int_equal(r.outcome, ETCD_OK);
    assert_int_equal(r.ttl_s, 0);
    r = reply_of(ETCD_AUTHENTICATE, 200, "{" HEADER ",\"token\":\"abc.9\"}");
    assert_int_equal(r.outcome, ETCD_OK);
    assert_string_equal(r.token, "abc.9");
}

static void test_errors(void **state)
{
    static const struct {
        int status;
        const char *body;
        enum etcd_outcome outcome;
        int code;
        const char *text;
    } table[] = {
        {404,
         "{\"error\":\"etcdserver: requested lease not found\",\"message\":\"etcdserver: requested lease not found\",\"code\":5}",
         ETCD_REFUSED, 5, "etcdserver: requested lease not found"},
        {404, "{\"error\":\"no lease\",\"code\":5}", ETCD_REFUSED, 5, "no lease"},                  /* 3.3 */
        {404, "{\"code\":5,\"message\":\"no lease\",\"details\":[]}", ETCD_REFUSED, 5, "no lease"}, /* 3.5 */
        {200,
         "{\"error\":{\"grpc_code\":5,\"http_code\":404,\"message\":\"no lease\",\"http_status\":\"Not Found\"}}",
         ETCD_REFUSED, 5, "no lease"}, /* streams of 3.4 */
        {401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}", ETCD_REFUSED, 16,
         "etcdserver: invalid auth token"},
        {503, "{\"error\":\"etcdserver: request timed out\",\"code\":14}", ETCD_UNKNOWN, 14,
         "etcdserver: request timed out"},
        {503, "{\"error\":\"etcdserver: no leader\",\"code\":14}", ETCD_UNKNOWN, 14, "etcdserver: no leader"},
        {500, "{\"error\":\"x\",\"code\":13}", ETCD_UNKNOWN, 13, "x"},
        {500, "{\"error\":\"a\\u001bb\",\"code\":13}", ETCD_UNKNOWN, 13, "a?b"},
        {429, "{\"error\":\"etcdserver: mvcc: database space exceeded\",\"code\":8}", ETCD_REFUSED, 8,
         "etcdserver: mvcc: database space exceeded"},
        {502, "<html>Bad Gateway</html>", ETCD_UNKNOWN, 0, "it answered with HTTP status 502"},
        {404, "Not Found", ETCD_UNKNOWN, 0, "it answered with HTTP status 404"},
        {500, "{\"error\":\"\",\"code\":13}", ETCD_UNKNOWN, 13, "it answered with HTTP status 500"},
        {500, "{\"error\":\"x\",\"code\":1e300}", ETCD_UNKNOWN, 0, "x"},
        {500, "{\"error\":\"x\",\"code\":\"5x\"}", ETCD_UNKNOWN, 0, "x"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct etcd_reply r = reply_of(ETCD_TXN, table[i].status, table[i].body);

        assert_int_equal(r.outcome, table[i].outcome);
        assert_int_equal(r.code, table[i].code);
        assert_string_equal(r.error, table[i].text);
        etcd_reply_finish(&r);
    }
}

static void test_not_understood(void **state)
{
    static const struct {
        unsigned kind;
        const char *body;
    } table[] = {
        {ETCD_RANGE, ""},
        {ETCD_RANGE, "[]"},
        {ETCD_RANGE, "{}"},
        {ETCD_RANGE, "{\"header\":{\"revision\":\"x\"}}"},
        {ETCD_RANGE, "{" HEADER ",\"kvs\":{}}"},
        {ETCD_RANGE, "{" HEADER ",\"kvs\":[{}]}"},
        {ETCD_RANGE, "{" HEADER ",\"kvs\":[{\"key\":\"YW-j\"}]}"},
        {ETCD_RANGE, "{" HEADER ",\"kvs\":[{\"key\":\"AAAA\"}]}"},
        {ETCD_RANGE, "{" HEADER ",\"kvs\":[{\"key\":\"YWJj\",\"value\":\"*\"}]}"},
        {ETCD_RANGE, "{" HEADER ",\"kvs\":[{\"key\":\"YWJj\",\"mod_revision\":\"99999999999999999999\"}]}"},
        {ETCD_GRANT, "{" HEADER "}"},
        {ETCD_GRANT, "{" HEADER ",\"ID\":\"\"}"},
        {ETCD_AUTHENTICATE, "{" HEADER "}"},
        {ETCD_AUTHENTICATE, "{" HEADER ",\"token\":\"a\\r\\nX: y\"}"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct etcd_reply r = reply_of(table[i].kind, 200, table[i].body);

        if (r.outcome != ETCD_UNKNOWN || r.n_pairs != 0)
            fail_msg("\"%s\" was understood", table[i].body);
        etcd_reply_finish(&r);
    }
}

static void test_urls(void **state)
{
    static const struct {
        const char *text, *first, *last, *prefix; /* first NULL: refused */
        size_t n;
    } table[] = {
        {"etcd://h1:2379,h2:1,h3/crun", "h1:2379", "h3:2379", "/crun", 3},
        {"etcd://[::1]:5,[fe80::1]/a/b/", "[::1]:5", "[fe80::1]:2379", "/a/b", 2},
        {"etcd://10.0.0.1/x", "10.0.0.1:2379", "10.0.0.1:2379", "/x", 1},
        {"etcd://h", NULL},
        {"etcd://h/", NULL},
        {"etcd://h//", NULL},
        {"etcd:///x", NULL},
        {"etcd://,h/x", NULL},
        {"etcd://h,/x", NULL},
        {"etcd://h:0/x", NULL},
        {"etcd://h:65536/x", NULL},
        {"etcd://h:/x", NULL},
        {"etcd://::1/x", NULL},
        {"etcd://[::1/x", NULL},
        {"etcd://[::1]x/x", NULL},
        {"etcd://user@h/x", NULL},
        {"etcd://h/x y", NULL},
        {"etcd://h/\xc3\xa4", NULL},
        {"etcd://a,b,c,d,e,f,g,h,i,j/x", NULL},
        {"/var/lib/crund", NULL},
    };
    struct etcd_url url;

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        const char *why = etcd_url_parse(table[i].text, &url);

        if (!why != (table[i].first != NULL))
            fail_msg("\"%s\": %s", table[i].text, why ? why : "was accepted");
        if (!table[i].first)
            continue;
        assert_int_equal(url.n_endpoints, table[i].n);
        assert_string_equal(url.endpoints[0], table[i].first);
        assert_string_equal(url.endpoints[url.n_endpoints - 1], table[i].last);
        assert_string_equal(url.prefix, table[i].prefix);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simple_bodies),  cmocka_unit_test(test_txn_body),
        cmocka_unit_test(test_txn_has_bounds), cmocka_unit_test(test_range_reply),
        cmocka_unit_test(test_txn_reply),      cmocka_unit_test(test_lease_replies),
        cmocka_unit_test(test_errors),         cmocka_unit_test(test_not_understood),
        cmocka_unit_test(test_urls),           cmocka_unit_test(test_brief_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
