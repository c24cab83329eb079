/*
 * When the stores of jobs' workers begin and end, on a server without connections: one for each instance of a job and key space,
 * and none is left for a job that this process learns nothing of any more. With nodes: tests/integration/test_rounds_etcd.py and
 * test_worker_store_local.py.
 */

#include <stdlib.h>
#include <string.h>

#include "rendezvous/server/job_stores_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/store/metrics_text.h"

#include "tests/support/c/cmocka_fixed.h"

static uv_loop_t loop;
static struct server *server;
static struct job_stores *stores;
static bool stopped;

static void note_stopped(void *data)
{
    stopped = true;
}

static int set_up(void **state)
{
    const struct server_config config = {0};

    stopped = false;
    if (uv_loop_init(&loop) < 0 || server_open(&server, &loop, &config) < 0 ||
        job_stores_add(&stores, server) < 0)
        return -1;
    server_start(server);
    return 0;
}

static int tear_down(void **state)
{
    server_stop(server, note_stopped, NULL);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_true(stopped);
    return uv_loop_close(&loop);
}

static int count_stores(void)
{
    struct metrics_text m = {0};
    int n = -1;

    server_write_metrics(server, &m);
    assert_int_equal(buf_append_u8(&m.bytes, 0), 0);
    const char *line = strstr((const char *)buf_bytes(&m.bytes), "\ncrun_job_stores ");
    if (line)
        n = atoi(line + strlen("\ncrun_job_stores "));
    buf_finish(&m.bytes);
    return n;
}

static void test_a_store_for_each_instance_and_key_space(void **state)
{
    job_stores_begin(stores, "a", 1, 1);
    job_stores_begin(stores, "a", 1, 1); /* a generation that goes on with its keys */
    assert_int_equal(count_stores(), 1);
    job_stores_begin(stores, "a", 2, 1);
    job_stores_begin(stores, "b", 1, 1);
    assert_int_equal(count_stores(), 3);
    job_stores_begin(stores, "a", 1, 2); /* begins with new keys */
    assert_int_equal(count_stores(), 3);
    job_stores_begin(stores, "a", 1, 0); /* its nodes have the keys */
    assert_int_equal(count_stores(), 2);
    job_stores_end(stores, "b", 2); /* another instance */
    assert_int_equal(count_stores(), 2);
    job_stores_end(stores, "b", 1);
    assert_int_equal(count_stores(), 1);
    job_stores_end(stores, "a", 2); /* has no node */
    assert_int_equal(count_stores(), 0);
}

static void test_stores_without_nodes_end_with_the_leadership(void **state)
{
    job_stores_begin(stores, "a", 1, 1);
    job_stores_begin(stores, "b", 2, 7);
    assert_int_equal(count_stores(), 2);
    job_stores_orphan(stores);
    assert_int_equal(count_stores(), 0);
    job_stores_begin(stores, "a", 1, 1); /* it leads again */
    assert_int_equal(count_stores(), 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_store_for_each_instance_and_key_space, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stores_without_nodes_end_with_the_leadership, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
