/*
 * Damage to snapshots, and a system that refuses: whatever it is, the newest snapshot that is whole loads.
 *
 *     snapshot-damage bits            every single bit of a file's header flipped
 *     snapshot-damage random FLIPS [SEED]   single bits of a whole file, drawn at random
 *     snapshot-damage truncation      a file cut at every byte
 *     snapshot-damage errors          every call of the writer fails, once or from then on, with each error
 *
 * For the first three the damaged file is the newer of two, and the older one must load in its place.
 */

#include "tests/support/c/snapshots/content.h"
#include "tests/support/c/snapshots/faulty_io.h"
#include "worker-runtime/checkpoint/snapshot_image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OLDER = 100, NEWER = 200, EVERY_BIT_IS_READ_FROM_DISK = 100 };

static char folder[256];

static void remove_folder(void)
{
    folder_empty(folder);
    rmdir(folder);
}

static void fail(const char *doing)
{
    fprintf(stderr, "snapshot-damage: %s: %s\n", doing, strerror(errno));
    exit(2);
}

__attribute__((format(printf, 1, 2))) static void broken(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("snapshot-damage: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void save(uint64_t step)
{
    char why[CONTENT_WHY_MAX];

    if (content_save_durably(folder, 2, step, why) < 0)
        broken("cannot save step %d: %s", (int)step, why);
}

static uint64_t load(int *ret_n_warnings)
{
    char why[CONTENT_WHY_MAX];
    uint64_t step;

    if (content_load_newest(folder, &step, ret_n_warnings, why) < 0)
        broken("%s", why);
    return step;
}

/* ------------------------------------------------------------------ a damaged file */

struct victim {
    int fd;
    uint8_t *bytes;
    size_t n_bytes, n_header;
};

static void make_victim(struct victim *v)
{
    char name[SNAPSHOT_NAME_SIZE];
    struct stat st;
    uint64_t n_json;

    save(OLDER);
    save(NEWER);
    snapshot_name(NEWER, name);
    v->fd = open(content_path(folder, name), O_RDWR | O_CLOEXEC);
    if (v->fd < 0 || fstat(v->fd, &st) < 0)
        fail("the newer snapshot");
    v->n_bytes = (size_t)st.st_size;
    v->bytes = malloc(v->n_bytes);
    if (!v->bytes || pread(v->fd, v->bytes, v->n_bytes, 0) != (ssize_t)v->n_bytes)
        fail("the newer snapshot");
    memcpy(&n_json, v->bytes, sizeof(n_json));
    v->n_header = 8 + (size_t)n_json;
}

static void put(const struct victim *v, size_t at, uint8_t byte)
{
    if (pwrite(v->fd, &byte, 1, (off_t)at) != 1)
        fail("a byte of the newer snapshot");
}

static void must_fall_back(const char *what, size_t at)
{
    int n_warnings;
    uint64_t step = load(&n_warnings);

    if (step != OLDER || n_warnings != 1)
        broken("%s %zu: step %d loads, %d files are called damaged", what, at, (int)step, n_warnings);
}

static void must_be_whole(void)
{
    int n_warnings;

    if (load(&n_warnings) != NEWER || n_warnings != 0)
        broken("the newer snapshot is not whole any more");
}

static void flip_on_disk(const struct victim *v, size_t bit)
{
    put(v, bit / 8, v->bytes[bit / 8] ^ (uint8_t)(1u << bit % 8));
    must_fall_back("bit", bit);
    put(v, bit / 8, v->bytes[bit / 8]);
}

static void flip_every_bit_of_the_header(void)
{
    struct victim v;

    make_victim(&v);
    for (size_t bit = 0; bit < 8 * v.n_header; bit++)
        flip_on_disk(&v, bit);
    must_be_whole();
    printf("bits: %zu of a header of %zu bytes, each one flipped: all found, the snapshot before loaded\n",
           8 * v.n_header, v.n_header);
}

static void flip_in_memory(const struct victim *v, size_t bit)
{
    char why[SNAPSHOT_WHY_MAX];
    struct safetensors st;
    uint64_t step;
    int r;

    v->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    r = content_check_image(v->bytes, v->n_bytes, &st, &step, why);
    v->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    if (r != SNAPSHOT_IMAGE_E_DAMAGED)
        broken("bit %zu flipped: the check says %d", bit, r);
}

static void flip_random_bits(long n, unsigned seed)
{
    struct victim v;
    long n_on_disk = 0;

    make_victim(&v);
    srandom(seed);
    for (long i = 0; i < n; i++) {
        size_t bit = (size_t)random() % (8 * v.n_bytes);

        flip_in_memory(&v, bit);
        if (i % EVERY_BIT_IS_READ_FROM_DISK == 0) {
            flip_on_disk(&v, bit);
            n_on_disk++;
        }
    }
    must_be_whole();
    printf(
        "random: %ld single bits of %zu bytes flipped, %ld of them in a file (seed %u): all found, the snapshot "
        "before loaded\n",
        n, v.n_bytes, n_on_disk, seed);
}

static void truncate_everywhere(void)
{
    struct victim v;

    make_victim(&v);
    for (size_t n = v.n_bytes; n-- > 0;) {
        if (ftruncate(v.fd, (off_t)n) < 0)
            fail("truncate");
        must_fall_back("cut at byte", n);
    }
    printf("truncation: a file of %zu bytes cut at every byte: always found, the snapshot before loaded\n",
           v.n_bytes);
}

/* ------------------------------------------------------------------ a system that refuses */

enum { SAVES = 4 };

/* Saves four steps. Returns the newest that was reported durable; *ret_failures: sentences. */
static uint64_t save_with(struct fault *f, uint64_t first, int *ret_failures)
{
    const struct snapshot_io io = faulty_io(f);
    struct crw_snapshots *s;
    const char *failure;
    uint64_t durable = first - 1;

    *ret_failures = 0;
    if (snapshots_create(folder, 2, &io, &s) != 0) {
        ++*ret_failures;
        return durable;
    }
    for (uint64_t step = first; step < first + SAVES; step++) {
        uint64_t now;

        if (content_save(s, step) != 0)
            broken("step %d cannot be staged", (int)step);
        crw_snapshots_wait(s);
        now = crw_snapshots_status(s, &failure);
        durable = now != CRW_NO_STEP && now > durable ? now : durable;
        *ret_failures += failure != NULL;
    }
    crw_snapshots_destroy(s);
    return durable;
}

/* How many calls there were before the fault could not be met any more. */
static int fail_at_every_call(enum fault_mode mode, int error, int *n_saved)
{
    for (int at = 1;; at++) {
        struct fault f = {.at = at, .mode = mode, .error = error, .write_max = 1500};
        uint64_t first, durable, step;
        int n_failures;

        folder_empty(folder);
        save(OLDER);
        first = OLDER + 1;
        durable = save_with(&f, first, &n_failures);
        step = load(NULL);
        if (step < durable || step < OLDER)
            broken("call %d fails with %s: step %d was durable, step %d loads", at, strerror(-error),
                   (int)durable, (int)step);
        if (f.met && n_failures == 0 && f.met != CALL_REMOVE && f.met != CALL_CLOSE)
            broken("call %d fails with %s, and nobody says so", at, strerror(-error));
        *n_saved += durable == first + SAVES - 1;
        /* The trouble is over: saving works again, and what was left behind is gone. */
        save(NEWER);
        if (load(NULL) != NEWER || folder_count(folder) != 2)
            broken("call %d failed with %s: %d files after the next save", at, strerror(-error),
                   folder_count(folder));
        if (!f.met)
            return at - 1;
    }
}

static void refuse(void)
{
    static const int errors[] = {-ENOSPC, -EIO, -EDQUOT, -EROFS};
    int n = 0, n_saved = 0;

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        for (int mode = FAULT_ERROR; mode <= FAULT_ERROR_STAYS; mode++)
            n += fail_at_every_call((enum fault_mode)mode, errors[i], &n_saved);
    printf(
        "errors: %d runs with a call that fails (ENOSPC, EIO, EDQUOT, EROFS; once, or from then on): a valid "
        "snapshot loaded after each, none older than the last durable one; %d had their last step saved\n",
        n, n_saved);
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR"), *what = argc > 1 ? argv[1] : "";

    (void)snprintf(folder, sizeof(folder), "%s/snapshot-damage-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        fail("a folder for the snapshots");
    atexit(remove_folder);
    if (strcmp(what, "bits") == 0)
        flip_every_bit_of_the_header();
    else if (strcmp(what, "random") == 0 && argc > 2)
        flip_random_bits(atol(argv[2]),
                         argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : (unsigned)time(NULL));
    else if (strcmp(what, "truncation") == 0)
        truncate_everywhere();
    else if (strcmp(what, "errors") == 0)
        refuse();
    else {
        fprintf(stderr, "usage: %s bits | random FLIPS [SEED] | truncation | errors\n", argv[0]);
        return 2;
    }
    return 0;
}
