/* Snapshots in a folder: complete or absent, the newest two, and nothing that is not a step's. */

#include "launcher/snapshots/snapshot_folder_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/state_blocks.h"
#include "proto/wire.h"

#include "tests/support/c/cmocka_fixed.h"

static char root[] = "/tmp/test-snapshot-folder-XXXXXX";

static const char *at(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

static bool exists(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

/* A block of two files: __R_0.distcp with the rank's text, and .metadata. */
static int make_block(uint32_t rank, const char *text)
{
    uint8_t bytes[512] = STATE_FILES_MAGIC;
    char name[STATE_FILE_NAME_SIZE] = "";
    int fd = memfd_create("block", MFD_CLOEXEC);

    (void)snprintf(name, sizeof(name), "__%u_0.distcp", rank);
    wire_store_u32(bytes + 8, 2);
    wire_store_u32(bytes + 16, 192);
    wire_store_u32(bytes + 24, (uint32_t)strlen(text));
    memcpy(bytes + 32, name, sizeof(name));
    wire_store_u32(bytes + 80, 256);
    wire_store_u32(bytes + 88, 4);
    (void)snprintf((char *)bytes + 96, 10, ".metadata");
    (void)snprintf((char *)bytes + 192, 64, "%s", text);
    (void)snprintf((char *)bytes + 256, 5, "md%02u", rank);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
    return fd;
}

static void expect_text(const char *path, const char *text)
{
    char bytes[64] = "";
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    assert_int_equal(read(fd, bytes, sizeof(bytes) - 1), strlen(text));
    assert_string_equal(bytes, text);
    close(fd);
}

static int save(uint64_t step, uint32_t generation, int32_t node, int32_t n_nodes)
{
    char folder[256];

    (void)snprintf(folder, sizeof(folder), "%s/saves", root);
    const struct snapshot_folder f = {
        .folder = folder, .step = step, .generation = generation, .node = node, .n_nodes = n_nodes};
    int fd = make_block((uint32_t)node, node ? "one" : "zero");
    assert_int_equal(snapshot_folder_write(&f, fd, (uint32_t)node), 0);
    close(fd);
    return snapshot_folder_finish(&f);
}

static void test_complete_with_the_last_node(void **state)
{
    (void)state;
    assert_int_equal(save(5, 0, 1, 2), 0);
    assert_false(exists(at("saves/step-5")));
    assert_int_equal(save(5, 0, 0, 2), 1);
    expect_text(at("saves/step-5/__0_0.distcp"), "zero");
    expect_text(at("saves/step-5/__1_0.distcp"), "one");
    expect_text(at("saves/step-5/.metadata"), "md00"); /* of rank 0 */
    assert_false(exists(at("saves/.step-5.0000000000000000.0")));
}

static void test_newest_two_stay(void **state)
{
    (void)state;
    assert_int_equal(mkdir(at("saves/step-2-mine"), 0777), 0);
    assert_int_equal(mkdir(at("saves/other"), 0777), 0);
    assert_int_equal(save(3, 0, 1, 2), 0); /* never completed */
    for (uint64_t step = 6; step < 9; step++)
        assert_int_equal(save(step, 1, 0, 1), 1);
    assert_false(exists(at("saves/step-5")));
    assert_false(exists(at("saves/step-6")));
    assert_true(exists(at("saves/step-7")) && exists(at("saves/step-8")));
    assert_false(exists(at("saves/.step-3.0000000000000000.0")));
    assert_true(exists(at("saves/step-2-mine")) && exists(at("saves/other")));
}

static void test_same_step_again(void **state)
{
    (void)state;
    assert_int_equal(mkdir(at("saves/step-7/of-the-user"), 0777), 0);
    assert_int_equal(save(8, 2, 0, 1), 1);
    expect_text(at("saves/step-8/__0_0.distcp"), "zero");
    assert_int_equal(save(9, 2, 0, 1), 1);
    assert_true(exists(at("saves/step-7/of-the-user"))); /* a folder in a step's folder stays */
    assert_false(exists(at("saves/step-7/__0_0.distcp")));
}

static void test_failures(void **state)
{
    (void)state;
    struct snapshot_folder f = {.folder = "/proc/no", .step = 1, .n_nodes = 1};
    int fd = make_block(0, "x"), empty = memfd_create("empty", MFD_CLOEXEC);

    assert_true(snapshot_folder_write(&f, fd, 0) < 0);
    assert_true(snapshot_folder_finish(&f) < 0);
    f.folder = root;
    assert_int_equal(snapshot_folder_write(&f, empty, 0), -EBADMSG);
    close(fd);
    close(empty);
}

static int make_root(void **state)
{
    return mkdtemp(root) && mkdir(at("saves"), 0777) == 0 ? 0 : -1;
}

static int remove_root(void **state)
{
    char command[300];

    (void)snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete_with_the_last_node),
        cmocka_unit_test(test_newest_two_stay),
        cmocka_unit_test(test_same_step_again),
        cmocka_unit_test(test_failures),
    };

    return cmocka_run_group_tests(tests, make_root, remove_root);
}
