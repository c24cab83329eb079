/* The header of a job at the far end of a channel: what it takes, its bounds, and what the agent gets. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launcher/front/far_header.h"

#include "tests/support/c/cmocka_fixed.h"

static int take(struct far_header *h, enum channel_kind kind, const char *text)
{
    const struct channel_frame frame = {kind, 0, (const uint8_t *)text, strlen(text), {{30000, 8}}};

    return far_header_take(h, &frame);
}

static void the_agent_gets_what_the_header_has(void **state)
{
    struct strlist arguments = {0};
    struct far_header h = {0};

    (void)state;
    assert_int_equal(take(&h, CHANNEL_SECRET, "secret"), 0);
    assert_int_equal(take(&h, CHANNEL_DIRECTORY, "/work"), 0);
    assert_int_equal(take(&h, CHANNEL_VARIABLE, "CHANGED=a=b"), 0);
    assert_int_equal(take(&h, CHANNEL_ARGUMENT, "x.py"), 0);
    assert_int_equal(take(&h, CHANNEL_ARGUMENT, ""), 0);
    assert_int_equal(take(&h, CHANNEL_START, ""), 1);
    assert_memory_equal(h.secret, "secret", h.n_secret);
    assert_string_equal(h.directory.items[0], "/work");
    assert_string_equal(h.variables.items[0], "CHANGED=a=b");
    assert_int_equal(h.start.shutdown_s, 30000);
    assert_int_equal(h.start.n_workers, 8);

    far_header_arguments(&h, "10.0.0.1", "127.0.0.1:5", &arguments);
    static const char *const expected[] = {"crun", "--local-addr=10.0.0.1", "--rdzv-endpoint=127.0.0.1:5",
                                           "x.py", ""};
    assert_int_equal(arguments.n_items, ARRAY_SIZE(expected));
    for (size_t i = 0; i < ARRAY_SIZE(expected); i++)
        assert_string_equal(arguments.items[i], expected[i]);
    strlist_finish(&arguments);
    far_header_finish(&h);
    assert_int_equal(h.start.shutdown_s, 30000);
}

static const struct refused {
    struct {
        enum channel_kind kind;
        const char *text;
    } frames[3];
} refused[] = {
    {{{CHANNEL_ARGUMENT, "a"}}},
    {{{CHANNEL_START, ""}}},
    {{{CHANNEL_SECRET, "a"}, {CHANNEL_SECRET, "a"}}},
    {{{CHANNEL_SECRET, ""}, {CHANNEL_DIRECTORY, "a"}, {CHANNEL_DIRECTORY, "a"}}},
    {{{CHANNEL_SECRET, ""}, {CHANNEL_DATA, "a"}}},
    {{{CHANNEL_SECRET, ""}, {CHANNEL_SIGNAL, "\2"}}},
};

static void a_frame_out_of_place_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        struct far_header h = {0};
        int r = 0;

        for (size_t k = 0; k < 3 && refused[i].frames[k].text && r == 0; k++)
            r = take(&h, refused[i].frames[k].kind, refused[i].frames[k].text);
        if (r != -EBADMSG)
            fail_msg("case %zu: %d", i, r);
        far_header_finish(&h);
    }
}

static void a_header_is_bounded(void **state)
{
    struct far_header h = {0};
    char text[CHANNEL_PAYLOAD_MAX];
    const struct channel_frame full = {CHANNEL_ARGUMENT, 0, (uint8_t *)text, sizeof(text)};
    int n = 0;

    (void)state;
    memset(text, 'x', sizeof(text));
    assert_int_equal(take(&h, CHANNEL_SECRET, ""), 0);
    while (far_header_take(&h, &full) == 0)
        n++;
    assert_int_equal(n, CHANNEL_HEADER_MAX / (CHANNEL_HEAD + CHANNEL_PAYLOAD_MAX));
    assert_int_equal(far_header_take(&h, &full), -E2BIG);
    far_header_finish(&h);

    assert_int_equal(take(&h, CHANNEL_SECRET, ""), 0);
    for (n = 0; take(&h, CHANNEL_ARGUMENT, "") == 0;)
        n++; /* empty arguments count with their heads */
    assert_in_range(n, 1, CHANNEL_HEADER_MAX / CHANNEL_HEAD);
    far_header_finish(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_agent_gets_what_the_header_has),
        cmocka_unit_test(a_frame_out_of_place_is_refused),
        cmocka_unit_test(a_header_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
