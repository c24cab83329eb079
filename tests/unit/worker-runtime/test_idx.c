/*
 * IDX files: a good one reads the same plain and compressed, and every way to be wrong gives a sentence with the path in it.
 */

#include "worker-runtime/programs/idx_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/c/cmocka_fixed.h"

enum { N_IMAGES = 3, ROWS = 4, COLUMNS = 5, IMAGE_FILE = 16 + N_IMAGES * ROWS * COLUMNS };

static char folder[] = "/tmp/crw-test-idx-XXXXXX";
static uint8_t images[IMAGE_FILE + 1]; /* one byte more than the file, to be too long with */
static char sentence[512];

static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 10, 7, 0, 9, 1, 1, 2, 3, 5, 8, 4};

static const char *in_folder(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static const char *write_plain(const char *name, const void *data, size_t n)
{
    const char *path = in_folder(name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static const char *write_gz(const char *name, const void *data, size_t n)
{
    const char *path = in_folder(name);
    gzFile gz = gzopen(path, "wb");

    assert_non_null(gz);
    assert_int_equal(gzwrite(gz, data, (unsigned)n), n);
    assert_int_equal(gzclose(gz), Z_OK);
    return path;
}

static int make_folder(void **state)
{
    static const uint8_t header[16] = {0, 0, 8, 3, 0, 0, 0, N_IMAGES, 0, 0, 0, ROWS, 0, 0, 0, COLUMNS};

    memcpy(images, header, sizeof(header));
    for (size_t i = sizeof(header); i < sizeof(images); i++)
        images[i] = (uint8_t)(i * 37);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    return rmdir(folder);
}

static void assert_images(const char *path)
{
    struct idx idx;

    assert_int_equal(idx_open(path, 2, &idx, sentence, sizeof(sentence)), 0);
    assert_int_equal(idx.n_items, N_IMAGES);
    assert_int_equal(idx.n_dims, 2);
    assert_int_equal(idx.dims[0], ROWS);
    assert_int_equal(idx.dims[1], COLUMNS);
    assert_memory_equal(idx.data, images + 16, N_IMAGES * ROWS * COLUMNS);
    idx_close(&idx);
    assert_null(idx.data);
    idx_close(&idx);
}

static void assert_refused(const char *path, int n_dims, const char *words)
{
    struct idx idx = {.n_items = 4711};

    sentence[0] = '\0';
    assert_int_equal(idx_open(path, n_dims, &idx, sentence, sizeof(sentence)), -1);
    if (!strstr(sentence, words) || !strstr(sentence, path))
        fail_msg("\"%s\" says neither \"%s\" nor where", sentence, words);
    assert_int_equal(idx.n_items, 4711);
}

static void reads_plain_and_compressed_images(void **state)
{
    const char *path = write_plain("images", images, IMAGE_FILE);

    assert_images(path);
    unlink(path);
    path = write_gz("images.gz", images, IMAGE_FILE);
    assert_images(path);
    unlink(path);
}

static void reads_labels(void **state)
{
    const char *path = write_plain("labels", labels, sizeof(labels));
    struct idx idx;

    assert_int_equal(idx_open(path, 0, &idx, sentence, sizeof(sentence)), 0);
    assert_int_equal(idx.n_items, 10);
    assert_int_equal(idx.n_dims, 0);
    assert_memory_equal(idx.data, labels + 8, 10);
    idx_close(&idx);
    unlink(path);
}

static void finds_the_other_spelling(void **state)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s", write_gz("images.gz", images, IMAGE_FILE));
    assert_images(in_folder("images"));
    unlink(path);
    (void)snprintf(path, sizeof(path), "%s", write_plain("images", images, IMAGE_FILE));
    assert_images(in_folder("images.gz"));
    unlink(path);
}

/* The content decides, not the name. */
static void reads_a_plain_file_named_gz(void **state)
{
    const char *path = write_plain("images.gz", images, IMAGE_FILE);

    assert_images(path);
    unlink(path);
}

static void refuses_a_missing_file(void **state)
{
    assert_refused(in_folder("images"), 2, "exists");
}

static void refuses_what_is_no_file(void **state)
{
    const char *path = in_folder("images");

    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(path, 2, "not a regular file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused(path, 2, "not a regular file");
    rmdir(path);
}

static void refuses_every_truncation_of_a_plain_file(void **state)
{
    for (size_t n = 0; n < IMAGE_FILE; n++) {
        const char *path = write_plain("images", images, n);

        assert_refused(path, 2, "truncated");
        unlink(path);
    }
}

static void refuses_too_long_files(void **state)
{
    const char *path = write_plain("images", images, IMAGE_FILE + 1);

    assert_refused(path, 2, "too long");
    unlink(path);
    path = write_gz("images.gz", images, IMAGE_FILE + 1);
    assert_refused(path, 2, "too long");
    unlink(path);
}

static void refuses_short_content_in_a_whole_gzip_file(void **state)
{
    for (size_t n = 0; n < IMAGE_FILE; n += 5) {
        const char *path = write_gz("images.gz", images, n);

        assert_refused(path, 2, "truncated");
        unlink(path);
    }
}

/* Every prefix of the compressed file: as long as the magic is there, it is a cut gzip stream. */
static void refuses_every_truncation_of_a_gzip_file(void **state)
{
    const char *path = write_gz("images.gz", images, IMAGE_FILE);
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    for (off_t n = st.st_size - 1; n >= 2; n--) {
        assert_int_equal(truncate(path, n), 0);
        assert_refused(path, 2, "");
    }
    unlink(path);
}

static void refuses_a_flipped_bit_in_a_gzip_file(void **state)
{
    const char *path = write_gz("images.gz", images, IMAGE_FILE);
    FILE *f = fopen(path, "r+b");
    struct stat st;

    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    assert_int_equal(fseek(f, st.st_size - 6, SEEK_SET), 0); /* inside the CRC-32 */
    int byte = fgetc(f);
    assert_int_equal(fseek(f, st.st_size - 6, SEEK_SET), 0);
    fputc(byte ^ 1, f);
    assert_int_equal(fclose(f), 0);
    assert_refused(path, 2, "damaged");
    unlink(path);
}

static void refuses_wrong_headers(void **state)
{
    static const struct {
        int offset;
        uint8_t value;
        const char *words;
    } cases[] = {
        {0, 1, "not an IDX file"}, {1, 0x50, "not an IDX file"}, {2, 0x0d, "type 0x0d"},
        {3, 1, "1 dimensions"},    {3, 4, "4 dimensions"},       {4, 0xff, "truncated"},
        {7, 2, "too long"},        {11, 0, "no size"},           {15, 6, "truncated"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t changed[IMAGE_FILE];
        const char *path;

        memcpy(changed, images, sizeof(changed));
        changed[cases[i].offset] = cases[i].value;
        path = write_plain("images", changed, sizeof(changed));
        assert_refused(path, 2, cases[i].words);
        unlink(path);
    }
}

/* A small file must not make us ask for a petabyte. */
static void refuses_impossible_sizes(void **state)
{
    uint8_t header[16] = {0, 0, 8, 3};
    const char *path;

    memset(header + 4, 0xff, 12);
    path = write_gz("images.gz", header, sizeof(header));
    assert_refused(path, 2, "more bytes than there can be");
    memset(header + 4, 0, 4);
    header[5] = 0xff;
    path = write_gz("images.gz", header, sizeof(header));
    assert_refused(path, 2, "more bytes than there can be");
    memset(header + 8, 0, 8);
    header[9] = header[13] = 1;
    path = write_gz("images.gz", header, sizeof(header));
    assert_refused(path, 2, "cannot come out of");
    unlink(path);
}

static void tells_labels_from_images(void **state)
{
    const char *path = write_plain("labels", labels, sizeof(labels));

    assert_refused(path, 2, "not a file of images");
    unlink(path);
    path = write_plain("images", images, IMAGE_FILE);
    assert_refused(path, 0, "not a file of labels");
    unlink(path);
}

static void names_what_the_system_refused(void **state)
{
    assert_refused("/dev/null/images", 2, "cannot open /dev/null/images: Not a directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_plain_and_compressed_images),
        cmocka_unit_test(reads_labels),
        cmocka_unit_test(finds_the_other_spelling),
        cmocka_unit_test(reads_a_plain_file_named_gz),
        cmocka_unit_test(refuses_a_missing_file),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(refuses_every_truncation_of_a_plain_file),
        cmocka_unit_test(refuses_too_long_files),
        cmocka_unit_test(refuses_short_content_in_a_whole_gzip_file),
        cmocka_unit_test(refuses_every_truncation_of_a_gzip_file),
        cmocka_unit_test(refuses_a_flipped_bit_in_a_gzip_file),
        cmocka_unit_test(refuses_wrong_headers),
        cmocka_unit_test(refuses_impossible_sizes),
        cmocka_unit_test(tells_labels_from_images),
        cmocka_unit_test(names_what_the_system_refused),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
