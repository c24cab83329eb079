/*
 * What `train` reads from its command line without a file or a peer: schedules of the learning rate, and
 * failures on request.
 */

#include <math.h>

#include "base/err.h"
#include "worker-runtime/programs/fault.h"
#include "worker-runtime/programs/schedule.h"

#include "tests/support/c/cmocka_fixed.h"

static struct schedule schedule_of(const char *text)
{
    struct schedule s;

    if (schedule_parse(text, &s) < 0)
        fail_msg("%s is refused", text);
    return s;
}

/* torch.optim.lr_scheduler.StepLR and CosineAnnealingLR in epoch 0, 1, 2 ... with a learning rate of 0.01. */
static void test_rates_are_pytorchs(void **state)
{
    static const struct {
        const char *text;
        double rates[6];
    } expected[] = {
        {"constant", {0.01, 0.01, 0.01, 0.01, 0.01, 0.01}},
        {"step",
         {0.01, 0.006999999999999999, 0.0048999999999999985, 0.003429999999999999, 0.002400999999999999,
          0.001680699999999999}},
        {"step:2:0.5", {0.01, 0.01, 0.005, 0.005, 0.0025, 0.0025}},
        {"cosine:4", {0.01, 0.008535533905932738, 0.005, 0.0014644660940672626, 0, 0}},
    };

    for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
        struct schedule s = schedule_of(expected[i].text);

        for (uint64_t epoch = 0; epoch < 6; epoch++)
            assert_true(fabs(schedule_lr(&s, 0.01, epoch) - expected[i].rates[epoch]) < 1e-17);
    }
}

/* What is written into a snapshot reads as the same schedule. */
static void test_descriptions_read_back(void **state)
{
    static const char *const texts[][2] = {
        {"constant", "constant"},
        {"step", "step:1:0.69999999999999996"},
        {"step:7", "step:7:0.69999999999999996"},
        {"step:3:0.25", "step:3:0.25"},
        {"cosine:12", "cosine:12"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct schedule s = schedule_of(texts[i][0]);
        struct schedule again = schedule_of(schedule_describe(&s).text);

        assert_string_equal(schedule_describe(&s).text, texts[i][1]);
        assert_int_equal(again.kind, s.kind);
        assert_int_equal(again.epochs, s.epochs);
        assert_true(again.gamma == s.gamma);
    }
    assert_int_equal(schedule_of("cosine").epochs, 0); /* --epochs fills it in */
}

static void test_refused_schedules(void **state)
{
    static const char *const texts[] = {
        "",
        "linear",
        "steps",
        "step:",
        "step:0",
        "step:-1",
        "step:1:",
        "step:1:0",
        "step:1:x",
        "step:1:nan",
        "step:1:0.5:",
        "constant:",
        "constant:1",
        "cosine:",
        "cosine:0",
        "cosine:1:2",
        ":step",
        "step:1:0.5555555555555555555555555555555555555555555555555555555555555555555555555555555555555",
    };
    struct schedule s;

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        if (schedule_parse(texts[i], &s) == 0)
            fail_msg("%s is taken", texts[i]);
    }
}

static void test_faults(void **state)
{
    struct fault f;

    assert_int_equal(fault_parse("rank=3,step=20,kind=hang", &f), 0);
    assert_int_equal(f.kind, FAULT_HANG);
    assert_int_equal(f.rank, 3);
    assert_int_equal(f.step, 20);
    assert_true(fault_is_due(&f, false, 0, 3, 20));
    assert_false(fault_is_due(&f, false, 1, 3, 20)); /* restarted already */
    assert_false(fault_is_due(&f, false, 0, 2, 20));
    assert_false(fault_is_due(&f, false, 0, 3, 21));
    assert_false(fault_is_due(&f, true, 0, 3, 20));
    assert_int_equal(fault_parse("kind=nan,step=1,rank=0", &f), 0);
    assert_int_equal(fault_parse("rank=3,step=20,kind=kill-early", &f), 0);
    assert_true(fault_is_due(&f, true, 0, 3, 20));
    assert_false(fault_is_due(&f, false, 0, 3, 20));
    assert_false(fault_is_due(&(struct fault){0}, false, 0, 0, 0));
}

static void test_refused_faults(void **state)
{
    static const char *const texts[] = {
        "",
        "rank=0",
        "rank=0,step=1",
        "step=1,kind=kill",
        "rank=0,kind=kill",
        "rank=0,step=0,kind=kill",
        "rank=-1,step=1,kind=kill",
        "rank=0,step=1,kind=",
        "rank=0,step=1,kind=none",
        "rank=0,step=1,kind=kill,",
        "rank=0,step=1,kind=kill,x=1",
        "rank=99999999999,step=1,kind=kill",
        "rank=0 step=1 kind=kill",
    };
    struct fault f;

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        if (fault_parse(texts[i], &f) == 0)
            fail_msg("%s is taken", texts[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_are_pytorchs), cmocka_unit_test(test_descriptions_read_back),
        cmocka_unit_test(test_refused_schedules),  cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refused_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
