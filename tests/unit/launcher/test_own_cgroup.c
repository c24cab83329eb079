/* The folder of a process's own cgroup, in all the ways in which cgroup v2 is mounted; each machine is a folder. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/host/own_cgroup_os.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

#define PROC "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
#define V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1                                                                                                   \
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"                                             \
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define UNIFIED "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:11 master:2 - cgroup2 cgroup2 rw\n"

struct machine {
    const char *cgroups, *mounts; /* /proc/self/cgroup and mountinfo; NULL: none */
    const char *folder;           /* that exists */
    const char *answer;           /* NULL: -ENOENT */
};

static void run(const char *verb, const char *root, const char *path)
{
    char command[1024];

    (void)snprintf(command, sizeof(command), "%s '%s/%s'", verb, root, path);
    assert_int_equal(system(command), 0);
}

static void make_file(const char *root, const char *path, const char *content)
{
    char whole[512];

    (void)snprintf(whole, sizeof(whole), "%s/%s", root, path);
    run("install -D /dev/null", root, path);
    FILE *f = fopen(whole, "w");
    assert_non_null(f);
    assert_int_equal(fputs(content, f) < 0, 0);
    assert_int_equal(fclose(f), 0);
}

static void the_mount_table_names_the_place(void **state)
{
    static const struct machine machines[] = {
        {"0::/a/b\n", PROC V2, "sys/fs/cgroup/a/b", "/sys/fs/cgroup/a/b"},
        {"0::/\n", PROC V2, "sys/fs/cgroup", "/sys/fs/cgroup"},
        {"4:memory:/x\n1:name=systemd:/y\n0::/y\n", PROC V1 UNIFIED, "sys/fs/cgroup/unified/y",
         "/sys/fs/cgroup/unified/y"},
        /* A container whose mount is a part of the hierarchy, without a namespace of its own, and with one. */
        {"0::/docker/12ab\n", "30 23 0:26 /docker/12ab /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
         "sys/fs/cgroup", "/sys/fs/cgroup"},
        {"0::/docker/12ab/job\n", "30 23 0:26 /docker/12ab /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
         "sys/fs/cgroup/job", "/sys/fs/cgroup/job"},
        {"0::/docker/12abc\n", "30 23 0:26 /docker/12ab /sys/fs/cgroup rw - cgroup2 cgroup rw\n",
         "sys/fs/cgroup/c", NULL},
        /* The host's folder in a container with a namespace: its root is not this process's. */
        {"0::/\n", "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "sys/fs/cgroup", NULL},
        /* Outside its own namespace. */
        {"0::/../other\n", PROC V2, "sys/fs/other", NULL},
        {"0::/a\n", "30 23 0:26 / /mnt/with\\040blank\\134 rw - cgroup2 cgroup2 rw\n", "mnt/with blank\\/a",
         "/mnt/with blank\\/a"},
        {"0::/a\n", "29 23 0:25 /b /elsewhere rw - cgroup2 cgroup2 rw\n" V2, "sys/fs/cgroup/a",
         "/sys/fs/cgroup/a"},
        {"0::/gone (deleted)\n", PROC V2, "sys/fs/cgroup", NULL},
        {"4:memory:/a\n", PROC V1, "sys/fs/cgroup/memory/a", NULL},
        {"0::/a\n", PROC V1, "sys/fs/cgroup/memory/a", NULL},
        {"0::/a\n", "nonsense\n - cgroup2 \n - cgroup2 x\n", "a", NULL},
        {"0::/a\n", NULL, "sys/fs/cgroup/a", NULL},
        {NULL, PROC V2, "sys/fs/cgroup", NULL},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++) {
        char root[] = "/tmp/test_own_cgroup_XXXXXX", path[512], expected[512];

        assert_non_null(mkdtemp(root));
        if (machines[i].cgroups)
            make_file(root, "proc/self/cgroup", machines[i].cgroups);
        if (machines[i].mounts)
            make_file(root, "proc/self/mountinfo", machines[i].mounts);
        run("mkdir -p", root, machines[i].folder);
        int r = own_cgroup_path(root, path, sizeof(path));
        (void)snprintf(expected, sizeof(expected), "%s%s", root,
                       machines[i].answer ? machines[i].answer : "");
        if (r != (machines[i].answer ? 0 : -ENOENT) || (!r && strcmp(path, expected) != 0))
            fail_msg("machine %zu: %d, %s", i, r, r ? "" : path);
        run("rm -r", root, "");
    }
}

static void without_proc_the_folder_that_lists_the_process_is_found(void **state)
{
    char root[] = "/tmp/test_own_cgroup_XXXXXX", own[32], path[512], expected[512];

    (void)state;
    assert_non_null(mkdtemp(root));
    (void)snprintf(own, sizeof(own), "2\n%d\n99999999\n", (int)getpid());
    make_file(root, "cgroup.procs", "1\n");
    make_file(root, "a/cgroup.procs", "3\n4\n");
    make_file(root, "b/c/cgroup.procs", own);
    make_file(root, "b/cgroup.procs", "");
    assert_int_equal(own_cgroup_search(root, path, sizeof(path)), 0);
    (void)snprintf(expected, sizeof(expected), "%s/b/c", root);
    assert_string_equal(path, expected);
    make_file(root, "b/c/cgroup.procs", "5\n");
    assert_int_equal(own_cgroup_search(root, path, sizeof(path)), -ENOENT);
    run("rm -r", root, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mount_table_names_the_place),
        cmocka_unit_test(without_proc_the_folder_that_lists_the_process_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
