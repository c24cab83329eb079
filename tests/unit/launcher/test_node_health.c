/* What makes a node unfit, as a table. */

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "launcher/host/node_health.h"

#include "tests/support/c/cmocka_fixed.h"

#define GIB (UINT64_C(1) << 30)

static const struct node_health_limits limits = {.gpu_free_percent = 90, .disk_free_bytes = 100 << 20};

static struct node_health fit_node(void)
{
    struct node_health h = {.n_gpus = 2, .n_gpus_expected = -1, .n_disks = 1};

    for (int i = 0; i < 2; i++)
        h.gpus[i] = (struct node_gpu){
            .index = i, .is_visible = true, .free_bytes = 79 * GIB, .total_bytes = 80 * GIB};
    h.disks[0] =
        (struct node_disk){.path = "/tmp", .purpose = "the folder for temporary files", .free_bytes = GIB};
    return h;
}

static void assert_judged(const struct node_health *h, bool is_fit, const char *part)
{
    char text[NODE_HEALTH_TEXT_SIZE];

    assert_int_equal(node_health_judge(h, &limits, text), is_fit);
    if (!strstr(text, part))
        fail_msg("'%s' does not contain '%s'", text, part);
}

static void faults_of_a_gpu(void **state)
{
    static const struct {
        struct node_gpu gpu;
        const char *text; /* NULL: fit */
    } rows[] = {
        {{.is_visible = true}, NULL}, /* a driver that reports nothing */
        {{.is_visible = true, .free_bytes = 72 * GIB, .total_bytes = 80 * GIB}, NULL},
        {{.is_visible = true, .free_bytes = 71 * GIB, .total_bytes = 80 * GIB}, "71.0 of 80.0 GiB free"},
        {{.is_visible = false, .free_bytes = 0, .total_bytes = 80 * GIB}, NULL},
        {{.is_visible = true, .is_unreachable = true}, "does not answer the driver"},
        {{.is_visible = true, .remap_pending = true}, "takes a reset"},
        {{.is_visible = true, .remap_failed = true, .remap_pending = true}, "could not be remapped"},
        {{.is_visible = true, .recovery = NODE_HEALTH_RECOVERY_REBOOT}, "needs a reboot of the node"},
        {{.is_visible = true, .recovery = NODE_HEALTH_RECOVERY_DRAIN_AND_RESET}, "needs a reset after"},
        {{.is_visible = true, .recovery = 99}, "needs an action"},
        {{.is_visible = true, .recovery = -1}, "needs an action"},
        {{.is_visible = false, .remap_failed = true}, NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct node_health h = fit_node();
        h.gpus[1] = rows[i].gpu;
        h.gpus[1].index = 1;
        assert_judged(&h, !rows[i].text, rows[i].text ? rows[i].text : "2 NVIDIA GPUs");
    }
}

static void a_gpu_that_is_missing(void **state)
{
    struct node_health h = fit_node();

    h.n_gpus_expected = 3;
    assert_judged(&h, false, "2 GPUs are left, and there were 3 before");
    h.n_gpus_expected = 2;
    assert_judged(&h, true, "2 NVIDIA GPUs");
    h.n_gpus = 0;
    assert_judged(&h, false, "0 GPUs are left");
    h.n_gpus_expected = -1;
    assert_judged(&h, true, "0 NVIDIA GPUs");
}

static void more_gpus_than_are_looked_at(void **state)
{
    struct node_health h = fit_node();

    for (int i = 0; i < NODE_HEALTH_GPUS_MAX; i++)
        h.gpus[i] = h.gpus[0];
    h.n_gpus = 65535;
    assert_false(node_health_lacks_memory(&h, &limits));
    assert_judged(&h, true, "65535 NVIDIA GPUs");
}

static void errors_of_the_driver(void **state)
{
    struct node_health h = fit_node();

    h.xids[0] = 79;
    h.n_xids = 1;
    assert_judged(&h, false, "Xid 79");
}

static void disks(void **state)
{
    struct node_health h = fit_node();

    h.disks[0].free_bytes = 99 << 20;
    assert_judged(&h, false, "/tmp has 99.0 MiB free, and 100.0 are asked for");
    h.disks[0].free_bytes = 100 << 20;
    assert_judged(&h, true, "0.1 GiB free in /tmp");
    h.disks[0].error = EROFS;
    assert_judged(&h, false, "/tmp cannot be used: Read-only file system");
}

static void texts_of_limits(void **state)
{
    struct node_health_limits l;

    assert_true(node_health_limits_parse(NULL, "", &l));
    assert_int_equal(l.gpu_free_percent, 90);
    assert_int_equal(l.disk_free_bytes, 100 << 20);
    assert_true(node_health_limits_parse("0", "5", &l));
    assert_int_equal(l.gpu_free_percent, 0);
    assert_int_equal(l.disk_free_bytes, 5 << 20);
    static const char *const wrong[] = {"101", "-1", "9x", " 5", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        assert_false(node_health_limits_parse(wrong[i], NULL, &l));
    assert_false(node_health_limits_parse(NULL, "many", &l));
}

static void the_number_of_gpus_is_read_back(void **state)
{
    char text[NODE_HEALTH_TEXT_SIZE];
    struct node_health h = fit_node();
    int n = -1;

    assert_true(node_health_judge(&h, &limits, text));
    assert_true(node_health_read_gpus(text, &n));
    assert_int_equal(n, 2);
    assert_false(node_health_read_gpus("GPU 1 needs a reset", &n));
    assert_false(node_health_read_gpus("", &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_of_a_gpu),
        cmocka_unit_test(a_gpu_that_is_missing),
        cmocka_unit_test(more_gpus_than_are_looked_at),
        cmocka_unit_test(errors_of_the_driver),
        cmocka_unit_test(disks),
        cmocka_unit_test(texts_of_limits),
        cmocka_unit_test(the_number_of_gpus_is_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
