/*
 * Snapshots on a real folder. The central promise is checked against every system call that the writer
 * makes: whichever fails, is cut short, or is the last thing the process does, a valid snapshot loads
 * afterwards and it is not older than the last one that was reported durable.
 */

#include "base/time.h"
#include "tests/support/c/snapshots/content.h"
#include "tests/support/c/snapshots/faulty_io.h"
#include "worker-runtime/base/run_identity_os.h"
#include "worker-runtime/checkpoint/snapshot.h"
#include "worker-runtime/checkpoint/snapshot_image.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

/* ---- a folder, and a state to save ---- */

static char folder[128];

static int make_folder(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/crw-test-snapshot-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static const char *path_of(const char *name)
{
    return content_path(folder, name);
}

static void empty_folder(void)
{
    folder_empty(folder);
}

static int remove_folder(void **state)
{
    empty_folder();
    return rmdir(folder);
}

static int count_files(void)
{
    return folder_count(folder);
}

static bool has_step(uint64_t step)
{
    char name[SNAPSHOT_NAME_SIZE];

    snapshot_name(step, name);
    return access(path_of(name), F_OK) == 0;
}

static int save(struct crw_snapshots *s, uint64_t step)
{
    return content_save(s, step);
}

/* Loads the newest and checks it; its step, 0 for none. */
static uint64_t load_newest(int *ret_n_warnings)
{
    char why[CONTENT_WHY_MAX];
    uint64_t step;

    if (content_load_newest(folder, &step, ret_n_warnings, why) < 0)
        fail_msg("%s", why);
    return step;
}

static struct crw_snapshots *writer(int keep)
{
    struct crw_snapshots *s;

    if (crw_snapshots_create(folder, keep, &s) != 0)
        fail_msg("%s", crw_error_message());
    return s;
}

/* Saves steps from..to by hundreds. */
static void save_steps(int keep, uint64_t from, uint64_t to)
{
    struct crw_snapshots *s = writer(keep);
    const char *failure;

    for (uint64_t step = from; step <= to; step += 100)
        assert_int_equal(save(s, step), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), to);
    assert_null(failure);
    crw_snapshots_destroy(s);
}

static void flip(uint64_t step, off_t at, uint8_t bits)
{
    char name[SNAPSHOT_NAME_SIZE];
    uint8_t byte;
    int fd;

    snapshot_name(step, name);
    fd = open(path_of(name), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* ---- saving and loading ---- */

static void loads_what_was_saved(void **state)
{
    int n_warnings;

    save_steps(2, 100, 100);
    assert_int_equal(load_newest(&n_warnings), 100);
    assert_int_equal(n_warnings, 0);
    assert_int_equal(count_files(), 1);
}

static void makes_missing_folders(void **state)
{
    char deep[512];
    struct crw_snapshots *s;

    (void)snprintf(deep, sizeof(deep), "%s/a/b", folder);
    assert_int_equal(crw_snapshots_create(deep, 1, &s), 0);
    crw_snapshots_destroy(s);
    assert_int_equal(rmdir(deep), 0);
    assert_int_equal(rmdir(path_of("a")), 0);
}

static void says_that_there_is_none(void **state)
{
    struct crw_snapshot *s;

    assert_int_equal(crw_snapshot_open_newest(folder, NULL, NULL, NULL, NULL, &s), CRW_E_NOT_FOUND);
    assert_int_equal(crw_snapshot_open_newest(path_of("nowhere"), NULL, NULL, NULL, NULL, &s),
                     CRW_E_NOT_FOUND);
    assert_int_equal(crw_snapshot_open(path_of("nothing"), &s), CRW_E_NOT_FOUND);
    assert_int_equal(crw_snapshot_open(folder, &s), CRW_E_DAMAGED);
    assert_int_equal(crw_snapshot_open_newest("/dev/null", NULL, NULL, NULL, NULL, &s), -ENOTDIR);
}

static void refuses_other_tensors(void **state)
{
    static const struct crw_tensor others[] = {
        {"model.bias", CRW_F32, 2, {10, 100}, NULL},       {"model.weights", CRW_F64, 2, {10, 100}, NULL},
        {"model.weights", CRW_F32, 1, {1000}, NULL},       {"model.weights", CRW_F32, 2, {100, 10}, NULL},
        {"model.weights", CRW_F32, 3, {10, 10, 10}, NULL},
    };
    const struct crw_tensor impossible = {"model.weights", CRW_F32, -1, {0}, NULL};
    struct crw_snapshot *s;

    save_steps(1, 100, 100);
    assert_int_equal(crw_snapshot_open_newest(folder, NULL, NULL, NULL, NULL, &s), 0);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_int_equal(crw_snapshot_read(s, &others[i]), CRW_E_MISMATCH);
        assert_non_null(strstr(crw_error_message(), others[i].name));
    }
    assert_int_equal(crw_snapshot_read(s, &impossible), CRW_E_ARGUMENT);
    crw_snapshot_close(s);
}

static void refuses_another_network(void **state)
{
    struct crw_snapshot *s;

    save_steps(1, 100, 100);
    assert_int_equal(crw_snapshot_open_newest(folder, "model_hash", "beef", NULL, NULL, &s), CRW_E_MISMATCH);
    assert_non_null(strstr(crw_error_message(), "cafe"));
    assert_int_equal(crw_snapshot_open_newest(folder, "flavour", "up", NULL, NULL, &s), CRW_E_MISMATCH);
}

static void refuses_arguments_that_make_no_snapshot(void **state)
{
    float x = 1;
    const struct crw_tensor good = {"x", CRW_F32, 1, {1}, &x}, nameless = {NULL, CRW_F32, 1, {1}, &x};
    const struct crw_tensor twins[] = {good, good};
    const struct crw_pair reserved = {"crw.step", "1"};
    struct crw_snapshots *s = writer(1), *none;
    const char *failure;

    assert_int_equal(crw_snapshots_save(s, 1, &nameless, 1, NULL, 0), CRW_E_ARGUMENT);
    assert_int_equal(crw_snapshots_save(s, 1, twins, 2, NULL, 0), CRW_E_ARGUMENT);
    assert_int_equal(crw_snapshots_save(s, 1, &good, 1, &reserved, 1), CRW_E_ARGUMENT);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), CRW_NO_STEP);
    assert_null(failure);
    assert_int_equal(save(s, 0), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), 0); /* a step as any other */
    assert_int_equal(save(s, 7), 0);
    crw_snapshots_destroy(s);
    assert_int_equal(load_newest(NULL), 7);
    assert_int_equal(crw_snapshots_create(folder, 0, &none), CRW_E_ARGUMENT);
}

/* A process of this number was killed while it saved the model, as happens in containers, where numbers repeat. */
static void a_leftover_of_a_killed_process_is_in_no_ones_way(void **state)
{
    const struct crw_layer layer = {.kind = CRW_LAYER_LINEAR, .name = "f", .in = 2, .out = 1};
    struct crw_model *model;
    char leftover[256], path[256];

    (void)snprintf(leftover, sizeof(leftover), "%s/.model.%d.tmp", folder, getpid());
    (void)snprintf(path, sizeof(path), "%s/model", folder);
    assert_int_equal(close(open(leftover, O_CREAT | O_WRONLY, 0600)), 0);
    assert_int_equal(crw_model_create(&layer, 1, (struct crw_shape){2, 1, 1}, 1, NULL, &model), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(crw_model_save(model, path), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* not replaced by a file, nor is a device */
    assert_int_equal(crw_model_save(model, path), CRW_E_ARGUMENT);
    crw_model_destroy(model);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(leftover), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void says_why_a_folder_cannot_be_used(void **state)
{
    struct crw_snapshots *s;
    char path[512];
    int fd = open(path_of("file"), O_CREAT | O_WRONLY, 0600);

    assert_true(fd >= 0);
    close(fd);
    (void)snprintf(path, sizeof(path), "%s/file", folder);
    assert_int_equal(crw_snapshots_create(path, 1, &s), -ENOTDIR);
    assert_non_null(strstr(crw_error_message(), path));
    (void)snprintf(path, sizeof(path), "%s/file/below", folder);
    assert_int_equal(crw_snapshots_create(path, 1, &s), -ENOTDIR);
    assert_int_equal(crw_snapshots_create("", 1, &s), -ENOENT);
    assert_int_equal(crw_snapshots_create("/proc/self", 1, &s), -ENOENT);
}

/* ---- which files stay ---- */

static void keeps_the_last(void **state)
{
    save_steps(2, 100, 700);
    assert_int_equal(count_files(), 2);
    assert_true(has_step(600));
    assert_true(has_step(700));
    save_steps(1, 800, 800);
    assert_int_equal(count_files(), 1);
    assert_int_equal(load_newest(NULL), 800);
}

/* A restart that saves once each time must not fill the disk, nor trust what it has not read. */
static void counts_only_valid_ones_of_earlier_runs(void **state)
{
    save_steps(9, 100, 500);
    flip(500, 200, 1);
    flip(300, 200, 1);
    save_steps(2, 600, 600);
    assert_true(has_step(600));
    assert_true(has_step(500)); /* damaged, newer than the last one that counts */
    assert_true(has_step(400));
    assert_false(has_step(300));
    assert_int_equal(count_files(), 3);
}

static void keeps_what_it_just_saved(void **state)
{
    save_steps(9, 700, 900);
    save_steps(2, 100, 100);
    assert_true(has_step(100));
    assert_true(has_step(800));
    assert_true(has_step(900));
    assert_int_equal(count_files(), 3);
}

static void removes_what_unfinished_writers_left(void **state)
{
    int fd = open(path_of(".snap-000000000123.77.tmp"), O_CREAT | O_WRONLY, 0600);
    int other = open(path_of("notes.txt"), O_CREAT | O_WRONLY, 0600);

    assert_true(fd >= 0 && other >= 0);
    close(fd);
    close(other);
    save_steps(1, 100, 100);
    assert_int_equal(count_files(), 2);
    assert_int_equal(access(path_of("notes.txt"), F_OK), 0);
}

/* ---- damage ---- */

static void falls_back_past_damage(void **state)
{
    char name[SNAPSHOT_NAME_SIZE];
    int n_warnings;

    save_steps(9, 100, 500);
    flip(500, 3000, 0x10);
    snapshot_name(400, name);
    assert_int_equal(truncate(path_of(name), 1500), 0);
    assert_int_equal(load_newest(&n_warnings), 300);
    assert_int_equal(n_warnings, 2);
    snapshot_name(300, name);
    assert_int_equal(truncate(path_of(name), 0), 0);
    flip(200, 8, 0x80);
    flip(100, 0, 1);
    assert_int_equal(load_newest(&n_warnings), 0);
    assert_int_equal(n_warnings, 5);
}

/* Weeks of work are in those files: a program that takes this for a new run would begin at step 0. */
static void damaged_files_alone_are_not_none(void **state)
{
    struct crw_snapshot *s;

    save_steps(9, 100, 200);
    flip(100, 200, 1);
    flip(200, 200, 1);
    assert_int_equal(crw_snapshot_open_newest(folder, NULL, NULL, NULL, NULL, &s), CRW_E_DAMAGED);
    assert_non_null(strstr(crw_error_message(), "use another folder"));
}

static void does_not_believe_a_file_name(void **state)
{
    char name[SNAPSHOT_NAME_SIZE], renamed[512];
    int n_warnings;

    save_steps(9, 100, 200);
    snapshot_name(900, name);
    (void)snprintf(renamed, sizeof(renamed), "%s/%s", folder, name);
    snapshot_name(100, name);
    assert_int_equal(rename(path_of(name), renamed), 0);
    assert_int_equal(load_newest(&n_warnings), 200);
    assert_int_equal(n_warnings, 1);
}

static void is_not_held_by_a_pipe(void **state)
{
    char name[SNAPSHOT_NAME_SIZE];
    int n_warnings;

    save_steps(1, 100, 100);
    snapshot_name(200, name);
    assert_int_equal(mkfifo(path_of(name), 0600), 0);
    assert_int_equal(load_newest(&n_warnings), 100);
    assert_int_equal(n_warnings, 1);
}

static struct buf small_image(void)
{
    static uint8_t bytes[5] = {1, 2, 3, 4, 5};
    const struct crw_tensor tensors[] = {{"a", CRW_U8, 1, {5}, bytes}, {"b", CRW_I16, 1, {2}, bytes}};
    const struct crw_pair meta = {"epoch", "2"};
    char why[SNAPSHOT_WHY_MAX];
    struct buf b = {0};

    assert_int_equal(snapshot_image_stage(42, tensors, 2, &meta, 1, &b, why), 0);
    assert_int_equal(snapshot_image_seal(buf_bytes(&b), buf_size(&b)), 0);
    return b;
}

static int check_image(const uint8_t *bytes, size_t size)
{
    char why[SNAPSHOT_WHY_MAX];
    struct safetensors st;
    uint64_t step;
    int r = content_check_image(bytes, size, &st, &step, why);

    if (r == 0) {
        assert_int_equal(step, 42);
        safetensors_finish(&st);
    }
    return r;
}

static void detects_every_flipped_bit(void **state)
{
    struct buf b = small_image();
    uint8_t *bytes = buf_bytes(&b);

    assert_int_equal(check_image(bytes, buf_size(&b)), 0);
    for (size_t bit = 0; bit < 8 * buf_size(&b); bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (check_image(bytes, buf_size(&b)) != SNAPSHOT_IMAGE_E_DAMAGED)
            fail_msg("bit %zu of byte %zu is not covered", bit % 8, bit / 8);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(check_image(bytes, buf_size(&b)), 0);
    buf_finish(&b);
}

static void detects_random_damage(void **state)
{
    struct buf b = small_image();
    uint8_t *bytes = buf_bytes(&b);
    uint32_t random = 1;

    for (int round = 0; round < 10000; round++) {
        uint8_t *damaged = malloc(buf_size(&b));
        int n_flips = 1 + round % 4;

        memcpy(damaged, bytes, buf_size(&b));
        for (int i = 0; i < n_flips; i++) {
            random = random * 1664525u + 1013904223u;
            damaged[(random >> 8) % buf_size(&b)] ^= (uint8_t)(1u << (random >> 4) % 8);
        }
        if (memcmp(damaged, bytes, buf_size(&b)) != 0)
            assert_int_equal(check_image(damaged, buf_size(&b)), SNAPSHOT_IMAGE_E_DAMAGED);
        free(damaged);
    }
    buf_finish(&b);
}

static void detects_every_truncation(void **state)
{
    struct buf b = small_image();

    for (size_t n = 0; n < buf_size(&b); n++) {
        uint8_t *prefix = malloc(n + 1);

        memcpy(prefix, buf_bytes(&b), n);
        assert_int_equal(check_image(prefix, n), SNAPSHOT_IMAGE_E_DAMAGED);
        free(prefix);
    }
    buf_finish(&b);
}

/* A file that another program wrote by the book, without our checksums. */
static void refuses_a_foreign_file(void **state)
{
    float x = 1;
    const struct crw_tensor tensor = {"x", CRW_F32, 1, {1}, &x};
    struct buf b = {0};
    const char *why;

    assert_int_equal(safetensors_encode(&tensor, 1, NULL, 0, &b, &why), 0);
    assert_int_equal(check_image(buf_bytes(&b), buf_size(&b)), SNAPSHOT_IMAGE_E_DAMAGED);
    buf_finish(&b);
}

/* ---- a system that fails ---- */

/* Saves four snapshots, keeping two; writes in pieces, so that there is a middle of a file. Whatever is
 * reported durable on the way goes to *durable. Returns how many saves failed; -1: could not start. */
static int train(struct fault *f, volatile uint64_t *durable)
{
    const struct snapshot_io io = faulty_io(f);
    struct crw_snapshots *s;
    int n_failures = 0;

    if (snapshots_create(folder, 2, &io, &s) != 0)
        return -1;
    for (uint64_t step = 100; step <= 400; step += 100) {
        const char *failure;
        uint64_t newest;

        assert_int_equal(save(s, step), 0);
        crw_snapshots_wait(s);
        newest = crw_snapshots_status(s, &failure);
        if (newest != CRW_NO_STEP && newest > *durable)
            *durable = newest;
        if (failure) {
            n_failures++;
            assert_non_null(strstr(failure, folder));
            crw_snapshots_status(s, &failure);
            assert_null(failure);
        }
    }
    crw_snapshots_destroy(s);
    return n_failures;
}

static void survives_an_error_of_every_call(void **state)
{
    static const int errors[] = {-ENOSPC, -EIO, -EDQUOT};
    uint64_t durable;

    for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
        for (int at = 1;; at++) {
            struct fault f = {.at = at, .mode = FAULT_ERROR, .error = errors[e], .write_max = 1500};
            int n_failures;

            empty_folder();
            save_steps(2, 1, 1);
            durable = 1;
            n_failures = train(&f, &durable);
            if (n_failures < 0)
                assert_string_equal(strrchr(crw_error_message(), ':') + 2, strerror(-errors[e]));
            assert_true(n_failures <= 1);
            assert_true(load_newest(NULL) >= durable);
            if (n_failures >= 0)
                assert_true(durable >= 300);
            if (f.n_calls < at) {
                assert_int_equal(durable, 400);
                assert_int_equal(n_failures, 0);
                break;
            }
            /* The next run begins with a clean folder and goes on. */
            save_steps(2, 500, 500);
            assert_int_equal(load_newest(NULL), 500);
            assert_int_equal(count_files(), 2);
        }
    }
}

static void discards_a_file_that_cannot_be_synced(void **state)
{
    struct fault f = {.at = 1, .only = CALL_SYNC, .mode = FAULT_ERROR, .error = -EIO};
    const struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;
    const char *failure;

    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), CRW_NO_STEP);
    assert_non_null(strstr(failure, "cannot sync"));
    assert_int_equal(count_files(), 0);
    crw_snapshots_destroy(s);
}

/* A disk that is full for a moment costs no snapshot; one sentence says that it was so. */
static void tries_again_after_a_pause(void **state)
{
    struct fault f = {.at = 1, .only = CALL_RESERVE, .mode = FAULT_ERROR, .error = -ENOSPC};
    struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;
    const char *failure;

    io.retry_ms = 1;
    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), 100);
    assert_non_null(strstr(failure, strerror(ENOSPC)));
    assert_non_null(strstr(failure, "; attempt 2 succeeded"));
    assert_int_equal(load_newest(NULL), 100);
    crw_snapshots_destroy(s);
}

static void gives_up_after_a_few_attempts(void **state)
{
    struct fault f = {.at = 1, .only = CALL_RESERVE, .mode = FAULT_ERROR_STAYS, .error = -ENOSPC};
    struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;
    const char *failure;

    io.retry_ms = 1;
    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), CRW_NO_STEP);
    assert_non_null(strstr(failure, "; tried 4 times"));
    crw_snapshots_status(s, &failure);
    assert_null(failure);
    assert_int_equal(count_files(), 0);
    crw_snapshots_destroy(s);
}

/* With an hour to wait, only a newer save or the end can be what ended the pause. */
static void a_newer_save_and_the_end_wait_for_no_pause(void **state)
{
    struct fault f = {.at = 1, .only = CALL_RESERVE, .mode = FAULT_ERROR, .error = -ENOSPC};
    struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;
    const char *failure;

    io.retry_ms = 3600000;
    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    assert_int_equal(save(s, 200), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), 200);
    assert_non_null(strstr(failure, "100"));
    f.at = f.n_calls + 1;
    assert_int_equal(save(s, 300), 0);
    crw_snapshots_destroy(s);
    assert_int_equal(load_newest(NULL), 200);
}

/* The question alone brings no newer state, for which the one in flight could be given up. */
static void a_question_ends_no_pause(void **state)
{
    struct fault f = {.at = 1, .only = CALL_RESERVE, .mode = FAULT_ERROR, .error = -ENOSPC};
    struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;

    io.retry_ms = 100;
    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    assert_false(crw_snapshots_busy(s, 50000)); /* as a newer save could begin */
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    crw_snapshots_destroy(s);
}

static void keeps_the_latest_sentences(void **state)
{
    struct fault f = {.mode = FAULT_ERROR, .error = -ENOSPC, .only = CALL_RESERVE};
    const struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;
    const char *failure;

    assert_int_equal(snapshots_create(folder, 1, &io, &s), 0);
    for (uint64_t step = 1; step <= 20; step++) {
        crw_snapshots_wait(s);
        f.at = f.n_calls + 1;
        assert_int_equal(save(s, step), 0);
    }
    crw_snapshots_wait(s);
    for (int step = 13; step <= 20; step++) {
        char name[SNAPSHOT_NAME_SIZE];

        snapshot_name((uint64_t)step, name);
        assert_int_equal(crw_snapshots_status(s, &failure), CRW_NO_STEP);
        assert_non_null(strstr(failure, name));
        assert_non_null(strstr(failure, strerror(ENOSPC)));
    }
    crw_snapshots_status(s, &failure);
    assert_null(failure);
    crw_snapshots_destroy(s);
}

static void goes_on_after_short_and_interrupted_writes(void **state)
{
    struct fault f = {.write_max = 7, .n_interrupts = 3};
    uint64_t durable = 0;

    assert_int_equal(train(&f, &durable), 0);
    assert_int_equal(durable, 400);
    assert_int_equal(load_newest(NULL), 400);
}

/* One crash in a child: false when the child came to its end because there is no such call. */
static bool crash(int at, enum fault_mode mode, volatile uint64_t *durable)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        struct fault f = {.at = at, .mode = mode, .write_max = 1500};

        _exit(train(&f, durable) == 0 ? 7 : 9);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 7);
    return WEXITSTATUS(status) == 0;
}

static void survives_a_crash_at_every_call(void **state)
{
    volatile uint64_t *durable =
        mmap(NULL, sizeof(*durable), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_true(durable != MAP_FAILED);
#ifdef __SANITIZE_THREAD__
    print_message("skipped: ThreadSanitizer lets no child of a threaded process start threads\n");
    skip();
#endif
    for (int mode = FAULT_CRASH_BEFORE; mode < FAULT_MODE_COUNT; mode++) {
        int at = 0;

        do {
            at++;
            empty_folder();
            save_steps(2, 1, 1);
            *durable = 1;
            if (crash(at, (enum fault_mode)mode, durable)) {
                assert_true(load_newest(NULL) >= *durable);
                save_steps(2, 500, 500);
                assert_int_equal(count_files(), 2);
                assert_int_equal(load_newest(NULL), 500);
            } else {
                assert_int_equal(*durable, 400);
                assert_int_equal(load_newest(NULL), 400);
                break;
            }
        } while (at < 1000);
        assert_true(at > 30 && at < 1000);
    }
    munmap((void *)(uintptr_t)durable, sizeof(*durable));
}

/* ---- ranks that were taken for lost ---- */

static void set_identity(const char *instance, const char *generation)
{
    if (instance)
        (void)setenv("CRUN_INSTANCE", instance, 1);
    else
        (void)unsetenv("CRUN_INSTANCE");
    (void)setenv("CRUN_GENERATION", generation, 1);
}

static int forget_identity(void **state)
{
    (void)unsetenv("CRUN_INSTANCE");
    (void)unsetenv("CRUN_GENERATION");
    return remove_folder(state);
}

/* What another host has written meanwhile, on a file system without locks. */
static void write_fence(const char *text)
{
    int fd = open(path_of("snapshots.fence"), O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void assert_refused(struct crw_snapshots *s, uint64_t step, const char *words)
{
    const char *failure;

    assert_int_equal(save(s, step), 0);
    crw_snapshots_wait(s);
    (void)crw_snapshots_status(s, &failure);
    assert_non_null(failure);
    if (!strstr(failure, words))
        fail_msg("'%s' does not say '%s'", failure, words);
    assert_false(has_step(step));
}

static void a_rank_of_an_earlier_generation_saves_nothing(void **state)
{
    struct crw_snapshots *s;
    const char *failure;

    set_identity("a1", "3");
    s = writer(2);
    assert_int_equal(save(s, 100), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), 100);
    assert_null(failure);
    write_fence("crun snapshot fence 1\ninstance a1\ngeneration 4\n");
    assert_refused(s, 200, "generation 4 of this job");
    assert_true(has_step(100));
    crw_snapshots_destroy(s);
    assert_int_equal(crw_snapshots_create(folder, 2, &s), -ESTALE);
    set_identity("a1", "4");
    crw_snapshots_destroy(writer(2));
}

static void a_rank_of_an_earlier_run_saves_nothing(void **state)
{
    struct crw_snapshots *s;

    set_identity("a1", "30");
    save_steps(2, 100, 100);
    s = writer(2);
    write_fence("crun snapshot fence 1\ninstance b2\ngeneration 0\nended a1\n");
    assert_refused(s, 200, "another run");
    crw_snapshots_destroy(s);
    assert_int_equal(crw_snapshots_create(folder, 2, &s), -ESTALE);
}

static void a_new_run_goes_on_from_a_later_generation(void **state)
{
    int n_warnings;

    set_identity("a1", "30");
    save_steps(2, 100, 100);
    set_identity("b2", "0");
    save_steps(2, 200, 200);
    set_identity(NULL, "0"); /* without crun, by hand */
    save_steps(2, 300, 300);
    set_identity("c3", "0");
    save_steps(2, 400, 400);
    assert_int_equal(load_newest(&n_warnings), 400);
    assert_int_equal(n_warnings, 0);
}

static void a_remaining_worker_saves_in_later_generations(void **state)
{
    struct crw_snapshots *s;
    const char *failure;

    set_identity("a1", "3");
    s = writer(2);
    write_fence(
        "crun snapshot fence 1\ninstance a1\ngeneration 4\n"); /* the first rank of 4 was another one */
    run_identity_set_generation(5);
    assert_int_equal(save(s, 100), 0);
    crw_snapshots_wait(s);
    assert_int_equal(crw_snapshots_status(s, &failure), 100);
    run_identity_set_generation(0);
    crw_snapshots_destroy(s);
}

/* Their files would lie in one folder, each for the other's numbers. Without crun no fence shows the second run. */
static void a_run_that_saved_between_opening_and_first_save_keeps_the_folder(void **state)
{
    static const char *const instances[][2] = {{"a1", "b2"}, {"a1", NULL}, {NULL, "b2"}, {NULL, NULL}};

    for (size_t before = 0; before < 3;
         before++) /* what a run before both has left: nothing, a fence, files alone */
        for (size_t i = 0; i < sizeof(instances) / sizeof(instances[0]); i++) {
            struct crw_snapshots *late;

            empty_folder();
            (void)unlink(path_of("snapshots.fence"));
            set_identity(before == 1 ? "c3" : NULL, "0");
            if (before > 0)
                save_steps(2, 100, 100);
            set_identity(instances[i][0], "0");
            late = writer(2);
            set_identity(instances[i][1], "0");
            save_steps(2, 200, 300);
            set_identity(instances[i][0], "0");
            assert_refused(late, 250, "another run");
            assert_int_equal(crw_snapshots_wait_for(late, 0), -ESTALE);
            crw_snapshots_destroy(late);
            assert_true(has_step(200) && has_step(300));
        }
}

static void a_run_that_saved_between_opening_and_first_save_may_be_this_one(void **state)
{
    struct crw_snapshots *s;

    set_identity("a1", "1");
    s = writer(2); /* of a rank that becomes the first one later */
    save_steps(2, 100, 200);
    run_identity_set_generation(2);
    assert_int_equal(save(s, 300), 0);
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    run_identity_set_generation(0);
    crw_snapshots_destroy(s);
}

static void a_damaged_fence_is_made_anew(void **state)
{
    set_identity("a1", "3");
    write_fence("not a fence");
    save_steps(2, 100, 200);
    assert_true(has_step(200));
}

/* It holds the claim of a run that saves there. */
static void a_fence_that_cannot_be_read_is_not_none(void **state)
{
    struct crw_snapshots *s;

    set_identity("a1", "3");
    assert_int_equal(symlink("snapshots.fence", path_of("snapshots.fence")), 0);
    assert_int_equal(crw_snapshots_create(folder, 2, &s), -ELOOP);
}

/* On a host that is lost, or frozen, and on a file system that keeps its locks. */
static void a_lock_of_an_earlier_generation_costs_nothing(void **state)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t began_ns = now_ns();

    assert_int_equal(flock(fd, LOCK_EX), 0);
    write_fence("crun snapshot fence 1\ninstance a1\ngeneration 3\n");
    set_identity("a1", "4");
    save_steps(2, 100, 200);
    assert_true(has_step(200));
    assert_true(now_ns() - began_ns < 1900000000);
    close(fd);
}

/* Or another run takes lock and fence, and ends the job. */
static void the_lock_is_taken_when_the_lost_process_has_let_go(void **state)
{
    int lost = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int other = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct crw_snapshots *s;

    assert_int_equal(flock(lost, LOCK_EX), 0);
    write_fence("crun snapshot fence 1\ninstance a1\ngeneration 3\n");
    set_identity("a1", "4");
    s = writer(2);
    assert_int_equal(save(s, 100), 0);
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    close(lost);
    assert_int_equal(save(s, 200), 0);
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    crw_snapshots_destroy(s);
    assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
    close(other);
}

/* ---- a disk that hangs ---- */

static sem_t disk;

static int hang_in_sync(void *data, int fd)
{
    while (sem_wait(&disk) < 0)
        ;
    return snapshot_io_system.sync(NULL, fd);
}

static void let_disk_go_on(int n_syncs)
{
    for (int i = 0; i < n_syncs; i++)
        (void)sem_post(&disk);
}

static void a_disk_that_hangs_is_waited_for_as_long_as_asked(void **state)
{
    struct snapshot_io io = snapshot_io_system;
    struct crw_snapshots *s;
    const char *failure;

    io.sync = hang_in_sync;
    (void)sem_init(&disk, 0, 0);
    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_false(crw_snapshots_busy(s, 0));
    assert_int_equal(crw_snapshots_wait_for(s, 0), 0);
    assert_int_equal(save(s, 100), 0);
    assert_true(crw_snapshots_busy(s, 20));
    assert_int_equal(crw_snapshots_wait_for(s, 20), CRW_E_TIMEOUT);
    assert_non_null(strstr(crw_error_message(), "step 100"));
    let_disk_go_on(2); /* the file and the folder */
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    assert_false(crw_snapshots_busy(s, 0));
    assert_int_equal(crw_snapshots_status(s, &failure), 100);
    crw_snapshots_destroy(s);
}

/* What crw_snapshots_destroy() writes to stderr. */
static const char *destroy(struct crw_snapshots *s)
{
    static char text[1024];
    int file = memfd_create("stderr", MFD_CLOEXEC), before = dup(STDERR_FILENO);
    ssize_t n;

    assert_true(file >= 0 && before >= 0);
    (void)dup2(file, STDERR_FILENO);
    crw_snapshots_destroy(s);
    (void)dup2(before, STDERR_FILENO);
    (void)close(before);
    n = pread(file, text, sizeof(text) - 1, 0);
    (void)close(file);
    assert_true(n >= 0);
    text[n] = '\0';
    return text;
}

static void a_disk_that_hangs_does_not_hold_the_end(void **state)
{
    static struct snapshot_io io; /* for the thread, which goes on */
    struct crw_snapshots *s;
    int n_left = 2;

    io = snapshot_io_system;
    io.sync = hang_in_sync;
    io.end_ms = 30;
    (void)sem_init(&disk, 0, 0);
    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    assert_non_null(strstr(destroy(s), "step 100"));
    assert_false(has_step(100));
    let_disk_go_on(2);
    for (int i = 0; i < 6000 && n_left > 0; i++, (void)sem_getvalue(&disk, &n_left))
        (void)usleep(10000);
    assert_int_equal(load_newest(NULL), 100);
}

static int sync_slowly(void *data, int fd)
{
    (void)usleep(100000);
    return snapshot_io_system.sync(NULL, fd);
}

/* A program that wants its collectives to fail soon wants its last step no less. */
static void the_time_of_collectives_ends_no_save(void **state)
{
    static const char *const times[] = {"10", "abc"};
    struct snapshot_io io = snapshot_io_system;
    struct crw_snapshots *s;

    io.sync = sync_slowly;
    for (uint64_t step = 0; step < 2; step++) {
        (void)setenv("CRW_TIMEOUT_MS", times[step], 1);
        assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
        assert_int_equal(save(s, step), 0);
        assert_string_equal(destroy(s), "");
        assert_true(has_step(step));
    }
    (void)unsetenv("CRW_TIMEOUT_MS");
}

static void the_result_of_the_last_save_is_told(void **state)
{
    struct fault f = {.at = 1, .only = CALL_SYNC, .mode = FAULT_ERROR, .error = -EIO};
    const struct snapshot_io io = faulty_io(&f);
    struct crw_snapshots *s;

    assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
    assert_int_equal(save(s, 100), 0);
    assert_int_equal(crw_snapshots_wait_for(s, 60000), -EIO);
    assert_int_equal(save(s, 200), 0);
    assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
    crw_snapshots_destroy(s);
}

/* ESTALE of the system, as NFS has it after a failover, is a failed save: the folder is still this run's. */
static void a_stale_file_of_the_system_is_tried_again(void **state)
{
    static const int calls[] = {CALL_CREATE, CALL_SYNC, CALL_RENAME};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct fault f = {.only = calls[i], .mode = FAULT_ERROR, .error = -ESTALE};
        struct snapshot_io io = faulty_io(&f);
        struct crw_snapshots *s;
        const char *failure;

        assert_int_equal(snapshots_create(folder, 2, &io, &s), 0);
        f.at = f.n_calls + 1;
        assert_int_equal(save(s, 100), 0);
        assert_int_equal(crw_snapshots_wait_for(s, 60000), -EIO);
        (void)crw_snapshots_status(s, &failure);
        assert_non_null(strstr(failure, strerror(ESTALE)));
        io.retry_ms = 1;
        f.at = f.n_calls + 1;
        assert_int_equal(save(s, 200), 0);
        assert_int_equal(crw_snapshots_wait_for(s, 60000), 0);
        crw_snapshots_destroy(s);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
#define FENCE_TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, forget_identity)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(loads_what_was_saved),
        TEST(makes_missing_folders),
        TEST(a_leftover_of_a_killed_process_is_in_no_ones_way),
        TEST(says_that_there_is_none),
        TEST(refuses_other_tensors),
        TEST(refuses_another_network),
        TEST(refuses_arguments_that_make_no_snapshot),
        TEST(says_why_a_folder_cannot_be_used),
        TEST(keeps_the_last),
        TEST(counts_only_valid_ones_of_earlier_runs),
        TEST(keeps_what_it_just_saved),
        TEST(removes_what_unfinished_writers_left),
        TEST(falls_back_past_damage),
        TEST(damaged_files_alone_are_not_none),
        TEST(does_not_believe_a_file_name),
        TEST(is_not_held_by_a_pipe),
        cmocka_unit_test(detects_every_flipped_bit),
        cmocka_unit_test(detects_random_damage),
        cmocka_unit_test(detects_every_truncation),
        cmocka_unit_test(refuses_a_foreign_file),
        TEST(survives_an_error_of_every_call),
        TEST(discards_a_file_that_cannot_be_synced),
        TEST(tries_again_after_a_pause),
        TEST(gives_up_after_a_few_attempts),
        TEST(a_newer_save_and_the_end_wait_for_no_pause),
        TEST(a_question_ends_no_pause),
        TEST(keeps_the_latest_sentences),
        TEST(goes_on_after_short_and_interrupted_writes),
        TEST(survives_a_crash_at_every_call),
        FENCE_TEST(a_rank_of_an_earlier_generation_saves_nothing),
        FENCE_TEST(a_rank_of_an_earlier_run_saves_nothing),
        FENCE_TEST(a_new_run_goes_on_from_a_later_generation),
        FENCE_TEST(a_remaining_worker_saves_in_later_generations),
        FENCE_TEST(a_run_that_saved_between_opening_and_first_save_keeps_the_folder),
        FENCE_TEST(a_run_that_saved_between_opening_and_first_save_may_be_this_one),
        FENCE_TEST(a_damaged_fence_is_made_anew),
        FENCE_TEST(a_fence_that_cannot_be_read_is_not_none),
        FENCE_TEST(a_lock_of_an_earlier_generation_costs_nothing),
        FENCE_TEST(the_lock_is_taken_when_the_lost_process_has_let_go),
        TEST(a_disk_that_hangs_is_waited_for_as_long_as_asked),
        TEST(a_disk_that_hangs_does_not_hold_the_end),
        TEST(the_time_of_collectives_ends_no_save),
        TEST(the_result_of_the_last_save_is_told),
        TEST(a_stale_file_of_the_system_is_tried_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
