/* The limits of a cgroup and of those above it, and how they get into one that is made below; each tree is in a folder. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/supervise/cgroup_limits_os.h"
#include "base/cleanup.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static void the_lowest_limit_holds(void **state)
{
    static const struct {
        const char *cpu[3], *memory[3]; /* of a cgroup and of those above it */
        struct cgroup_limits answer;
    } cases[] = {
        {{"", "", ""}, {"", "", ""}, {0}},
        {{"max 100000\n", "max 100000\n", ""}, {"max\n", "max\n", ""}, {0}},
        {{"max 100000\n", "150000 100000\n", ""}, {"max\n", "max\n", ""}, {150000, 100000, 0}},
        {{"200000 100000\n", "150000 100000\n", "250000 100000\n"}, {"", "", ""}, {150000, 100000, 0}},
        /* Half a processor, in other periods. */
        {{"100000 100000\n", "5000 10000\n", "60000 100000\n"}, {"", "", ""}, {5000, 10000, 0}},
        {{"50000 100000\n", "5000 10000\n", ""}, {"", "", ""}, {50000, 100000, 0}},
        {{"max 100000\n", "", ""}, {"max\n", "1073741824\n", "4096\n"}, {0, 0, 4096}},
        {{"", "", ""}, {"9223372036854771712\n", "max\n", ""}, {0, 0, 9223372036854771712u}},
        /* What is no limit of this kernel. */
        {{"-1 100000\n", "100000\n", "100000 0\n"}, {"x\n", "\n", ""}, {0}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct cgroup_limits l = {0};

        for (int j = 0; j < 3; j++)
            cgroup_limits_lower(&l, cases[i].cpu[j], cases[i].memory[j]);
        if (memcmp(&l, &cases[i].answer, sizeof(l)) != 0)
            fail_msg("case %zu: %llu %llu, %llu", i, (unsigned long long)l.cpu_quota_us,
                     (unsigned long long)l.cpu_period_us, (unsigned long long)l.memory);
    }
}

static void in_shell(const char *root, const char *script)
{
    char command[1024];

    (void)snprintf(command, sizeof(command), "cd '%s' && { %s; }", root, script);
    assert_int_equal(system(command), 0);
}

static int open_folder(const char *root, const char *path)
{
    char whole[256];

    (void)snprintf(whole, sizeof(whole), "%s/%s", root, path);
    int fd = open(whole, O_PATH | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void limits_of_a_tree(void **state)
{
    char root[] = "/tmp/test_cgroup_limits_XXXXXX";
    struct cgroup_limits l;

    (void)state;
    assert_non_null(mkdtemp(root));
    /* "mount" is the root of the hierarchy, which has no limits; what is above it is not a cgroup. */
    in_shell(root,
             "mkdir -p mount/a/b/job; touch mount/cgroup.procs mount/a/cgroup.procs mount/a/b/cgroup.procs;"
             "echo 1 > memory.max; echo max > mount/a/b/memory.max; echo 4096 > mount/a/memory.max;"
             "echo 20000 100000 > mount/a/b/cpu.max; echo 10000 100000 > mount/a/cpu.max");
    _cleanup_close_ int parent = open_folder(root, "mount/a/b"), job = open_folder(root, "mount/a/b/job");
    cgroup_limits_read(parent, &l);
    assert_int_equal(l.memory, 4096);
    assert_int_equal(l.cpu_quota_us, 10000);
    assert_false(cgroup_limits_enable(parent, &l)); /* there is no cgroup.subtree_control */
    assert_false(cgroup_limits_write(job, &l));     /* nor the files that it makes */
    in_shell(root, "touch mount/a/b/cgroup.subtree_control mount/a/b/job/cpu.max mount/a/b/job/memory.max");
    assert_true(cgroup_limits_enable(parent, &l));
    assert_true(cgroup_limits_write(job, &l));
    in_shell(
        root,
        "[ $(cat mount/a/b/job/memory.max) = 4096 ] && [ \"$(cat mount/a/b/job/cpu.max)\" = '10000 100000' ]");
    in_shell(root,
             "echo max > mount/a/memory.max; echo max 100000 | tee mount/a/b/cpu.max > mount/a/cpu.max;"
             "rm mount/a/b/cgroup.subtree_control mount/a/b/job/*");
    cgroup_limits_read(parent, &l);
    assert_true(cgroup_limits_enable(parent, &l) &&
                cgroup_limits_write(job, &l)); /* no limit needs no file */
    in_shell("/", "rm -r /tmp/test_cgroup_limits_??????");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lowest_limit_holds),
        cmocka_unit_test(limits_of_a_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
