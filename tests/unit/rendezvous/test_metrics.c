/* The text of metrics, what Accept asks for, addresses, and the counts of a store. */

#include <stdio.h>
#include <string.h>

#include "proto/address.h"
#include "base/err.h"
#include "rendezvous/store/metrics_text.h"
#include "rendezvous/store/store_stats.h"

#include "tests/support/c/cmocka_fixed.h"

static const char *text_of(struct metrics_text *m)
{
    static char text[8192];

    metrics_end(m);
    assert_false(m->failed);
    assert_true(buf_size(&m->bytes) < sizeof(text));
    memcpy(text, buf_bytes(&m->bytes), buf_size(&m->bytes));
    text[buf_size(&m->bytes)] = '\0';
    buf_finish(&m->bytes);
    return text;
}

static void write_some(struct metrics_text *m)
{
    metrics_one(m, "crun_x", METRIC_COUNTER, "Things.", 3);
    metrics_family(m, "crun_y", METRIC_GAUGE, "Others.");
    metrics_sample(m, "crun_y", "",
                   (const struct metric_label[]){{"a", "q\"b\\c\nd\xff"}, {"b", ""}, {NULL, NULL}}, 0.25);
}

static void two_formats(void **state)
{
    struct metrics_text prometheus = {0}, open_metrics = {.is_open_metrics = true};

    (void)state;
    write_some(&prometheus);
    assert_string_equal(text_of(&prometheus),
                        "# HELP crun_x_total Things.\n"
                        "# TYPE crun_x_total counter\n"
                        "crun_x_total 3\n"
                        "# HELP crun_y Others.\n"
                        "# TYPE crun_y gauge\n"
                        "crun_y{a=\"q\\\"b\\\\c\\nd?\",b=\"\"} 0.25\n");
    write_some(&open_metrics);
    const char *text = text_of(&open_metrics);
    assert_non_null(strstr(text, "# TYPE crun_x counter\ncrun_x_total 3\n"));
    assert_string_equal(text + strlen(text) - 6, "# EOF\n");
}

static void accept_decides(void **state)
{
    (void)state;
    assert_false(metrics_wants_open(NULL));
    assert_false(metrics_wants_open("text/plain;version=0.0.4"));
    assert_true(metrics_wants_open("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
}

static void addresses(void **state)
{
    static const struct {
        const char *text, *host; /* host: NULL: refused */
        uint16_t port;
    } rows[] = {
        {"9100", "127.0.0.1", 9100},
        {"0", "127.0.0.1", 0},
        {":9100", "::", 9100},
        {"[::1]:9100", "::1", 9100},
        {"0.0.0.0:9100", "0.0.0.0", 9100},
        {"localhost:1", "127.0.0.1", 1},
        {"", NULL, 0},
        {":", NULL, 0},
        {"host:9100", NULL, 0},
        {"65536", NULL, 0},
        {"::1:9100", NULL, 0},
        {"[::1]", NULL, 0},
        {"-1", NULL, 0},
        {"1.2.3.4:", NULL, 0},
        {"[]:1", "::", 1},
        {"1111111111111111111111111111111111111111111111111111111111111111:1", NULL, 0},
    };
    char host[64];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(address_parse_listener(rows[i].text, host, &port), rows[i].host != NULL);
        if (rows[i].host) {
            assert_string_equal(host, rows[i].host);
            assert_int_equal(port, rows[i].port);
        }
    }
}

static void times_of_a_store(void **state)
{
    struct store_stats stats = {0};
    struct metrics_text m = {0};

    (void)state;
    store_stats_count(&stats, WIRE_OP_SET);
    store_stats_time(&stats, 0, 1000000);    /* nothing was executed */
    store_stats_time(&stats, 10, 10 * 1000); /* 1 us each */
    store_stats_time(&stats, 1, 4001);
    store_stats_time(&stats, 1, UINT64_C(3600000000000));
    store_stats_write(&stats, &m);
    const char *text = text_of(&m);
    assert_non_null(strstr(text, "crun_store_operations_total{op=\"set\"} 1\n"));
    assert_non_null(strstr(text, "_bucket{le=\"1e-06\"} 10\n"));
    assert_non_null(strstr(text, "_bucket{le=\"4e-06\"} 10\n"));
    assert_non_null(strstr(text, "_bucket{le=\"1.6e-05\"} 11\n"));
    assert_non_null(strstr(text, "_bucket{le=\"+Inf\"} 12\n"));
    assert_non_null(strstr(text, "_seconds_count 12\n"));
    assert_null(strstr(text, "validate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_formats),
        cmocka_unit_test(accept_decides),
        cmocka_unit_test(addresses),
        cmocka_unit_test(times_of_a_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
