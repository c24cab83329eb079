/* Which system calls snapshots make, seen by functions of this program in front of fallocate(), fsync(), reads and flock(). */

#include "tests/support/c/snapshots/content.h"
#include "worker-runtime/crw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

enum { SYNCED_MAX = 16 };

static int n_interrupted, n_synced;
static size_t largest_read;
static bool has_locks = true;
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

ssize_t read(int fd, void *bytes, size_t n)
{
    largest_read = n > largest_read ? n : largest_read;
    return syscall(SYS_read, fd, bytes, n);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t at)
{
    largest_read = n > largest_read ? n : largest_read;
    return syscall(SYS_pread64, fd, bytes, n, at);
}

int flock(int fd, int operation)
{
    errno = ENOLCK;
    return has_locks ? (int)syscall(SYS_flock, fd, operation) : -1;
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

static void save_large(uint64_t step)
{
    static float numbers[1 << 20];
    const struct crw_tensor tensor = {"x", CRW_F32, 1, {1 << 20}, numbers};
    struct crw_snapshots *s;

    assert_int_equal(crw_snapshots_create(root, 3, &s), 0);
    assert_int_equal(crw_snapshots_save(s, step, &tensor, 1, NULL, 0), 0);
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    crw_snapshots_destroy(s);
}

/* The state is in memory twice while it is saved, and no third time for each file of an earlier run. */
static void old_files_are_checked_in_pieces(void **state)
{
    save_large(1);
    save_large(2);
    largest_read = 0;
    save_large(3);
    assert_true(largest_read > 0 && largest_read <= 64 << 10);
    assert_int_equal(folder_count(root), 3);
    folder_empty(root);
}

/* Where locks do not reach: an evaluation opens the folder, and the training beside it goes on. */
static void a_folder_that_is_opened_is_not_claimed(void **state)
{
    struct crw_snapshots *training, *evaluation;
    int fd;

    has_locks = false;
    (void)setenv("CRUN_INSTANCE", "training", 1);
    assert_int_equal(crw_snapshots_create(root, 3, &training), 0);
    assert_int_equal(content_save(training, 100), 0);
    assert_int_equal(crw_snapshots_wait_for(training, 60000), 0);
    (void)setenv("CRUN_INSTANCE", "evaluation", 1);
    fd = open(below(".snap-000000000200.1.tmp"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600); /* in flight */
    (void)close(fd);
    assert_int_equal(crw_snapshots_create(root, 3, &evaluation), 0);
    assert_int_equal(access(below(".snap-000000000200.1.tmp"), F_OK), 0);
    assert_int_equal(content_save(training, 200), 0);
    assert_int_equal(crw_snapshots_wait_for(training, 60000), 0);
    assert_int_equal(content_save(evaluation, 300), 0); /* now it has another purpose */
    assert_int_equal(crw_snapshots_wait_for(evaluation, 60000), 0);
    assert_int_equal(content_save(training, 400), 0);
    assert_int_equal(crw_snapshots_wait_for(training, 60000), -ESTALE);
    crw_snapshots_destroy(training);
    crw_snapshots_destroy(evaluation);
    (void)unsetenv("CRUN_INSTANCE");
    has_locks = true;
    folder_empty(root);
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
        cmocka_unit_test(old_files_are_checked_in_pieces),
        cmocka_unit_test(a_folder_that_is_opened_is_not_claimed),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
