/* GPUs of AMD and Intel on machines that are folders, with and without lists of visible devices. */

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/host/gpu_sysfs_os.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

struct entry {
    const char *path;
    const char *text; /* of a file; with "->" in front the target of a link */
};

static char machine[] = "/tmp/test-gpu-sysfs-XXXXXX";

static void make_parents(const char *path)
{
    char folder[PATH_MAX];

    (void)snprintf(folder, sizeof(folder), "%s", path);
    for (char *slash = folder + sizeof(machine); (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        (void)mkdir(folder, 0700); /* it may be there */
    }
}

static void add_entry(const struct entry *entry)
{
    char path[PATH_MAX];

    (void)snprintf(path, sizeof(path), "%s/%s", machine, entry->path);
    make_parents(path);
    if (strncmp(entry->text, "->", 2) == 0) {
        assert_int_equal(symlink(entry->text + 2, path), 0);
        return;
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(entry->text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make_machine(void **state)
{
    static const struct entry entries[] = {
        /* node 0 is the processor; the render node of 3 is not in this container */
        {"sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n"},
        {"sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 304\ndrm_render_minor 128\n"},
        {"sys/class/kfd/kfd/topology/nodes/2/properties",
         "cpu_cores_count 0\nsimd_count 304\ndrm_render_minor 129\n"},
        {"sys/class/kfd/kfd/topology/nodes/3/properties", "simd_count 304\ndrm_render_minor 140\n"},
        {"sys/class/kfd/kfd/topology/nodes/4/properties", "simd_count 304\ndrm_render_minor 130\n"},
        {"dev/dri/renderD128", ""},
        {"dev/dri/renderD129", ""},
        {"dev/dri/renderD130", ""},
        {"dev/dri/renderD131", ""},
        {"dev/dri/renderD132", ""},
        {"dev/dri/renderD133", ""},
        /* two cards of Intel and the GPU inside the processor */
        {"sys/devices/0000:00:02.0/vendor", "0x8086\n"},
        {"sys/devices/0000:4d:00.0/vendor", "0x8086\n"},
        {"sys/devices/0000:4e:00.0/vendor", "0x8086\n"},
        {"sys/devices/0000:01:00.0/vendor", "0x1002\n"},
        {"sys/class/drm/card1/x", ""},
        {"sys/class/drm/renderD128/device", "->../../../devices/0000:01:00.0"},
        {"sys/class/drm/renderD131/device", "->../../../devices/0000:00:02.0"},
        {"sys/class/drm/renderD132/device", "->../../../devices/0000:4d:00.0"},
        {"sys/class/drm/renderD133/device", "->../../../devices/0000:4e:00.0"},
    };

    assert_non_null(mkdtemp(machine));
    for (size_t i = 0; i < ARRAY_SIZE(entries); i++)
        add_entry(&entries[i]);
    return 0;
}

static int remove_machine(void **state)
{
    char command[sizeof(machine) + 16];

    (void)snprintf(command, sizeof(command), "rm -rf %s", machine);
    return system(command);
}

static void test_amd(void **state)
{
    static const struct {
        const char *environment[4];
        int n;
    } cases[] = {
        {{NULL}, 3},
        {{"ROCR_VISIBLE_DEVICES=0,2"}, 2},
        {{"HIP_VISIBLE_DEVICES=1"}, 1},
        {{"CUDA_VISIBLE_DEVICES=1"}, 1},
        {{"HIP_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=1"}, 2},
        {{"ROCR_VISIBLE_DEVICES=1,2", "HIP_VISIBLE_DEVICES=0,1,2"}, 2}, /* the third is not left */
        {{"ROCR_VISIBLE_DEVICES=GPU-0123456789abcdef"}, 1},
        {{"HIP_VISIBLE_DEVICES="}, 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(gpu_count_amd(machine, (char *const *)(uintptr_t)cases[i].environment), cases[i].n);
}

static void test_intel(void **state)
{
    static const struct {
        const char *environment[2];
        int n;
    } cases[] = {
        {{NULL}, 2},
        {{"ZE_AFFINITY_MASK="}, 2},
        {{"ZE_AFFINITY_MASK=1"}, 1},
        {{"ZE_AFFINITY_MASK=0,1,2"}, 2},
        {{"ZE_AFFINITY_MASK=0.0,0.1"}, 1},
        {{"ZE_AFFINITY_MASK=7"}, 0},
    };
    char path[PATH_MAX];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(gpu_count_intel(machine, (char *const *)(uintptr_t)cases[i].environment),
                         cases[i].n);
    for (int card = 132; card <= 133; card++) {
        (void)snprintf(path, sizeof(path), "%s/dev/dri/renderD%d", machine, card);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(gpu_count_intel(machine, (char *const *)(uintptr_t)cases[0].environment), 1);
}

static void test_neither(void **state)
{
    char *const environment[] = {NULL};

    assert_int_equal(gpu_count_amd("/nonexistent", environment), 0);
    assert_int_equal(gpu_count_intel("/nonexistent", environment), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_amd),
        cmocka_unit_test(test_intel),
        cmocka_unit_test(test_neither),
    };

    return cmocka_run_group_tests(tests, make_machine, remove_machine);
}
