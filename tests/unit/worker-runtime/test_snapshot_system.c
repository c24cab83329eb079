/* Which system calls snapshots make, seen by functions of this program in front of fallocate() and fsync(). */

#include "worker-runtime/checkpoint/snapshot_file_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

enum { SYNCED_MAX = 16 };

static int n_interrupted, n_synced;
static ino_t synced[SYNCED_MAX];
static char root[64];

/* Interrupted by as many signals as n_interrupted. */
int fallocate(int fd, int mode, off_t offset, off_t length)
{
    if (n_interrupted > 0) {
        n_interrupted--;
        errno = EINTR;
        return -1;
    }
    return (int)syscall(SYS_fallocate, fd, mode, offset, length);
}

int fsync(int fd)
{
    struct stat st;

    if (fstat(fd, &st) == 0 && n_synced < SYNCED_MAX)
        synced[n_synced++] = st.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

static bool is_synced(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    for (int i = 0; i < n_synced; i++)
        if (synced[i] == st.st_ino)
            return true;
    return false;
}

static const char *below(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

/* tmpfs gives up a reservation for a signal, whatever the flags of its handler. */
static void signals_do_not_end_a_save(void **state)
{
    int folder_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(folder_fd >= 0);
    n_interrupted = 3;
    assert_int_equal(
        snapshot_file_replace(&snapshot_io_system, folder_fd, "file", ".file.tmp", "file", "bytes", 5, NULL),
        0);
    assert_int_equal(n_interrupted, 0);
    (void)close(folder_fd);
    assert_int_equal(unlink(below("file")), 0);
}

/* Or a power cut takes a folder above the snapshots, and them with it. */
static void every_folder_made_has_its_name_on_disk(void **state)
{
    char deep[128];
    int fd;

    (void)snprintf(deep, sizeof(deep), "%s/a/b/c", root);
    n_synced = 0;
    fd = snapshot_folder_create(deep);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_true(is_synced(root));
    assert_true(is_synced(below("a")));
    assert_true(is_synced(below("a/b")));
    n_synced = 0;
    fd = snapshot_folder_create(deep);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(n_synced, 0); /* nothing was made */
    assert_int_equal(rmdir(deep), 0);
    assert_int_equal(rmdir(below("a/b")), 0);
    assert_int_equal(rmdir(below("a")), 0);
}

static int make_root(void **state)
{
    const char *folder = getenv("TMPDIR");

    (void)snprintf(root, sizeof(root), "%.40s/crw-XXXXXX", folder ? folder : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    return rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_do_not_end_a_save),
        cmocka_unit_test(every_folder_made_has_its_name_on_disk),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
