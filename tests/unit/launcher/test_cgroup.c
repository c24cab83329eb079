/* The OOM killer's count, in all the ways in which cgroups are mounted; each machine is a folder. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/host/cgroup_os.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

#define V2 "low 0\nhigh 0\nmax 4\noom 2\noom_kill 3\noom_group_kill 0\n"
#define V1 "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"

struct machine {
    const char *cgroups; /* /proc/self/cgroup; NULL: none */
    const char *file, *content;
    long answer;
};

static void make(const char *root, const char *path, const char *content)
{
    char whole[512], command[600];

    (void)snprintf(whole, sizeof(whole), "%s/%s", root, path);
    (void)snprintf(command, sizeof(command), "mkdir -p \"$(dirname '%s')\"", whole);
    assert_int_equal(system(command), 0);
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    assert_int_equal(fputs(content, f) < 0, 0);
    assert_int_equal(fclose(f), 0);
}

static void test_mounts(void **state)
{
    static const struct machine machines[] = {
        {"0::/a/b\n", "sys/fs/cgroup/a/b/memory.events", V2, 3},
        {"0::/\n", "sys/fs/cgroup/memory.events", V2, 3},
        {"0::/of/the/host\n", "sys/fs/cgroup/memory.events", V2, 3},
        {"4:memory:/a\n3:cpuset:/\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control", V1, 5},
        {"12:cpu,memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control", V1, 5},
        {"4:memory:/docker/12ab\n", "sys/fs/cgroup/memory/memory.oom_control", V1, 5},
        {"9:name=systemd:/x\n0::/y\n", "sys/fs/cgroup/unified/y/memory.events", V2, 3},
        {"4:memory:/a\n", "sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\n",
         -1}, /* old kernel */
        {"0::/a\n", "sys/fs/cgroup/a/memory.events", "oom_kill 7\n", 7},
        {"0::/a\n", "sys/fs/cgroup/b/memory.events", V2, -1},
        {"nonsense", "sys/fs/cgroup/memory.events", V2, -1},
        {"9:name=memory:/a\n", "sys/fs/cgroup/memory/a/memory.oom_control", V1, -1},
        {"", "x", "", -1},
        {NULL, "sys/fs/cgroup/memory.events", V2, -1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(machines); i++) {
        char root[] = "/tmp/test_cgroup_XXXXXX", command[64];

        assert_non_null(mkdtemp(root));
        if (machines[i].cgroups)
            make(root, "proc/self/cgroup", machines[i].cgroups);
        make(root, machines[i].file, machines[i].content);
        long answer = cgroup_oom_kills(root);
        (void)snprintf(command, sizeof(command), "rm -rf '%s'", root);
        assert_int_equal(system(command), 0);
        if (answer != machines[i].answer)
            fail_msg("machine %zu: %ld", i, answer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mounts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
