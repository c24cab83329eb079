/* How much memory there is, read from a tree of files as /proc and /sys have them. */

#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

#define MEMINFO "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    2000 kB\nSwapFree: 48 kB\n"
#define AVAILABLE (2048 * 1024)

struct file {
    const char *path, *text;
};

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700); /* most of them exist */
        *slash = '/';
    }
}

static uint64_t available_with(const struct file *files)
{
    char root[] = "/tmp/test-memory.XXXXXX", path[256], command[64];
    uint64_t available;

    assert_non_null(mkdtemp(root));
    for (; files->path; files++) {
        (void)snprintf(path, sizeof(path), "%s%s", root, files->path);
        make_folders(path);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        assert_true(fputs(files->text, f) >= 0 && fclose(f) == 0);
    }
    available = memory_available(root);
    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
    return available;
}

#define CG "/sys/fs/cgroup"
#define V1 CG "/memory"

static const struct {
    const char *name;
    uint64_t available;
    struct file files[8];
} cases[] = {
    {"nothing is known", UINT64_MAX, {{"/x", ""}}},
    {"the machine alone", AVAILABLE, {{"/proc/meminfo", MEMINFO}}},
    {"v2, the cgroup itself",
     600000,
     {{"/proc/meminfo", MEMINFO},
      {"/proc/self/cgroup", "0::/a/b\n"},
      {CG "/a/b/memory.max", "1000000\n"},
      {CG "/a/b/memory.current", "400000\n"},
      {CG "/a/memory.max", "max\n"}}},
    {"v2, one above it, whose cache can go",
     750000,
     {{"/proc/meminfo", MEMINFO},
      {"/proc/self/cgroup", "1:name=systemd:/z\n0::/a/b\n"},
      {CG "/a/b/memory.max", "1800000\n"},
      {CG "/a/memory.max", "1000000\n"},
      {CG "/a/memory.current", "450000\n"},
      {CG "/a/memory.stat", "anon 1\nfile 250000\ninactive_file 150000\nactive_file 50000\n"}}},
    {"v2, a container, which is at the top",
     1000,
     {{"/proc/self/cgroup", "0::/\n"}, {CG "/memory.max", "5000\n"}, {CG "/memory.current", "4000\n"}}},
    {"v2, more than the limit",
     0,
     {{"/proc/self/cgroup", "0::/\n"}, {CG "/memory.max", "4000\n"}, {CG "/memory.current", "5000\n"}}},
    {"v2, names of many files",
     900000,
     {{"/proc/self/cgroup", "0::/\n"},
      {CG "/memory.max", "1000000\n"},
      {CG "/memory.current", "800000\n"},
      {CG "/memory.stat", "slab 710000\nslab_reclaimable 700000\nslab_unreclaimable 10000\n"}}},
    {"v1, names of many files",
     900000,
     {{"/proc/self/cgroup", "4:memory:/a\n"},
      {V1 "/a/memory.limit_in_bytes", "1000000\n"},
      {V1 "/a/memory.usage_in_bytes", "800000\n"},
      {V1 "/a/memory.kmem.usage_in_bytes", "700000\n"}}},
    {"v1",
     300000,
     {{"/proc/meminfo", MEMINFO},
      {"/proc/self/cgroup", "5:cpu,cpuacct:/q\n4:memory:/a\n0::/z\n"},
      {V1 "/a/memory.limit_in_bytes", "9223372036854771712\n"},
      {V1 "/memory.limit_in_bytes", "1000000\n"},
      {V1 "/memory.usage_in_bytes", "800000\n"},
      {V1 "/memory.stat", "inactive_file 1\ntotal_inactive_file 60000\ntotal_active_file 40000\n"}}},
    {"v1 without a limit",
     AVAILABLE,
     {{"/proc/meminfo", MEMINFO},
      {"/proc/self/cgroup", "4:memory:/a\n"},
      {V1 "/a/memory.limit_in_bytes", "9223372036854771712\n"}}},
};

static void the_smallest_limit_counts(void **state)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t found = available_with(cases[i].files);

        if (found != cases[i].available)
            fail_msg("%s: %llu, not %llu", cases[i].name, (unsigned long long)found,
                     (unsigned long long)cases[i].available);
    }
}

static void this_machine_has_some(void **state)
{
    uint64_t available = memory_available("");

    assert_true(available > 1 << 20 && available < UINT64_MAX);
}

static void sizes_are_compared_without_overflow(void **state)
{
    memory_pretend(10 << 20);
    assert_true(memory_has_room(10 << 20, 1) && memory_has_room(0, SIZE_MAX) && memory_has_room(1, 1));
    errno = 0;
    assert_false(memory_has_room((10 << 20) + 1, 1));
    assert_int_equal(errno, ENOMEM);
    assert_false(memory_has_room(SIZE_MAX, 2) || memory_has_room((size_t)1 << 33, (size_t)1 << 31));
    memory_pretend(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_smallest_limit_counts),
        cmocka_unit_test(this_machine_has_some),
        cmocka_unit_test(sizes_are_compared_without_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
