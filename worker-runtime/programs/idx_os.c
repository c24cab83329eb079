/*
 * Big-endian magic 00 00 08 <dimensions>, one u32 for each dimension, then the bytes, nothing behind them.
 *
 * A plain file is mapped, so that the ranks of a host share the file's pages. Each process inflates a gzip file into
 * private memory. The first two bytes decide, not the name. The header is not trusted: the length in the header is
 * compared with the file before memory is allocated, exactly for a plain file, and by the best ratio of deflate for a
 * compressed file.
 */

#include "worker-runtime/programs/idx_os.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"

enum {
    HEADER_MAX = 4 + 3 * 4,
    TYPE_BYTES = 0x08,
    GZ_BUFFER = 256 * 1024,
    GZ_READ_MAX = 1 << 30,    /* gzread() counts in int */
    DEFLATE_RATIO_MAX = 1033, /* 258 bytes out of 2 bits, and a little for the frame */
};

/* The file being opened, and the place for a sentence. */
struct idx_file {
    const char *path;
    int fd;
    uint64_t size;
    int n_dims; /* expected of an item */
    char *error;
    size_t error_size;
};

__attribute__((format(printf, 2, 3))) static int idx_fail(const struct idx_file *f, const char *format, ...)
{
    (void)format_arguments(f->error, f->error_size, format); /* a long sentence is cut */
    return -1;
}

static uint32_t read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static size_t header_size(int n_dims)
{
    return 4 + 4 * ((size_t)n_dims + 1);
}

/* Product of all dimensions; false when the product does not fit. */
static bool count_item_bytes(const struct idx *idx, uint64_t *ret_n_bytes)
{
    uint64_t n = idx->n_items;

    for (int i = 0; i < idx->n_dims; i++)
        if (__builtin_mul_overflow(n, idx->dims[i], &n))
            return false;
    *ret_n_bytes = n;
    return n <= SSIZE_MAX - HEADER_MAX;
}

/* Fills in sizes from header_size(f->n_dims) bytes. */
static int parse_header(const struct idx_file *f, const uint8_t *header, struct idx *idx,
                        uint64_t *ret_n_bytes)
{
    if (header[0] != 0 || header[1] != 0)
        return idx_fail(f, "%s is not an IDX file: it starts with bytes %02x %02x, not 00 00", f->path,
                        header[0], header[1]);
    if (header[2] != TYPE_BYTES)
        return idx_fail(f, "%s holds elements of IDX type 0x%02x; only bytes (0x08) are supported", f->path,
                        header[2]);
    if (header[3] != f->n_dims + 1)
        return idx_fail(f, "%s has %d dimensions, expected %d: %s", f->path, header[3], f->n_dims + 1,
                        f->n_dims == 0 ? "it is not a file of labels" : "it is not a file of images");
    idx->n_items = read_u32(header + 4);
    idx->n_dims = f->n_dims;
    for (int i = 0; i < f->n_dims; i++) {
        idx->dims[i] = read_u32(header + 8 + 4 * i);
        if (idx->dims[i] == 0)
            return idx_fail(f, "the header of %s is damaged: its items have no size", f->path);
    }
    if (!count_item_bytes(idx, ret_n_bytes))
        return idx_fail(f, "%s promises more bytes than there can be: the header is damaged", f->path);
    return 0;
}

static int fail_length(const struct idx_file *f, uint64_t actual, uint64_t expected)
{
    return idx_fail(f, "%s is %s: it has %" PRIu64 " bytes and its header promises %" PRIu64, f->path,
                    actual < expected ? "truncated" : "too long", actual, expected);
}

static int open_plain(const struct idx_file *f, struct idx *idx)
{
    uint64_t n_bytes = 0;

    if (f->size < header_size(f->n_dims))
        return idx_fail(f, "%s is truncated: %" PRIu64 " bytes are not even a header", f->path, f->size);
    void *mapping = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (mapping == MAP_FAILED)
        return idx_fail(f, "cannot map %s: %s", f->path, strerror(errno));
    int r = parse_header(f, mapping, idx, &n_bytes);
    if (r == 0 && header_size(f->n_dims) + n_bytes != f->size)
        r = fail_length(f, f->size, header_size(f->n_dims) + n_bytes);
    if (r) {
        (void)munmap(mapping, f->size); /* our own mapping: cannot fail */
        return r;
    }
    idx->mapping = mapping;
    idx->mapping_size = f->size;
    idx->data = (const uint8_t *)mapping + header_size(f->n_dims);
    return 0;
}

static int fail_gz(const struct idx_file *f, gzFile gz)
{
    int code;
    const char *words = gzerror(gz, &code);

    if (code == Z_ERRNO)
        return idx_fail(f, "cannot read %s: %s", f->path, strerror(errno ? errno : EIO));
    if (code == Z_MEM_ERROR)
        return idx_fail(f, "cannot inflate %s: %s", f->path, strerror(ENOMEM));
    if (code == Z_BUF_ERROR)
        return idx_fail(f, "%s is truncated: its compressed data ends in the middle", f->path);
    return idx_fail(f, "%s is damaged: %s", f->path, words);
}

/* Reads up to n bytes; *ret_n is how many came before the end of the data. */
static int read_gz(const struct idx_file *f, gzFile gz, uint8_t *to, size_t n, size_t *ret_n)
{
    size_t done = 0;
    int got = 0;
    int code;

    while (done < n) {
        unsigned want = n - done > GZ_READ_MAX ? GZ_READ_MAX : (unsigned)(n - done);

        got = gzread(gz, to + done, want);
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    /* For a truncated stream gzread() returns a short count, and only gzerror() has the error. */
    (void)gzerror(gz, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
        return fail_gz(f, gz);
    *ret_n = done;
    return 0;
}

static int inflate_all(const struct idx_file *f, gzFile gz, struct idx *idx)
{
    uint8_t header[HEADER_MAX] = {0}, beyond;
    uint64_t n_bytes = 0;
    size_t n = 0;

    TRY(read_gz(f, gz, header, header_size(f->n_dims), &n));
    if (n < header_size(f->n_dims))
        return idx_fail(f, "%s is truncated: %zu bytes are not even a header", f->path, n);
    TRY(parse_header(f, header, idx, &n_bytes));
    if (n_bytes / DEFLATE_RATIO_MAX > f->size)
        return idx_fail(f,
                        "%s is truncated: its header promises %" PRIu64
                        " bytes, which cannot come "
                        "out of %" PRIu64,
                        f->path, n_bytes, f->size);
    _cleanup_free_ uint8_t *memory = malloc(n_bytes + 1);
    if (!memory)
        return idx_fail(f, "cannot hold the %" PRIu64 " bytes of %s: %s", n_bytes, f->path, strerror(ENOMEM));
    TRY(read_gz(f, gz, memory, n_bytes, &n));
    if (n < n_bytes)
        return fail_length(f, header_size(f->n_dims) + n, header_size(f->n_dims) + n_bytes);
    /* Reading another byte also makes zlib check the sum behind the data. */
    TRY(read_gz(f, gz, &beyond, 1, &n));
    if (n != 0)
        return idx_fail(f, "%s is too long: data follows the %" PRIu64 " bytes that its header promises",
                        f->path, header_size(f->n_dims) + n_bytes);
    idx->data = idx->memory = steal_ptr(memory);
    return 0;
}

static int open_gz(const struct idx_file *f, struct idx *idx)
{
    _cleanup_close_ int gz_fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);

    if (gz_fd < 0)
        return idx_fail(f, "cannot open %s: %s", f->path, strerror(errno));
    gzFile gz = gzdopen(gz_fd, "rb");
    if (!gz)
        return idx_fail(f, "cannot inflate %s: %s", f->path, strerror(ENOMEM));
    (void)steal_fd(&gz_fd);        /* gzclose_r() closes the descriptor */
    (void)gzbuffer(gz, GZ_BUFFER); /* only faster */
    int r = inflate_all(f, gz, idx);
    (void)gzclose_r(gz); /* everything was read and checked */
    return r;
}

/* The other spelling of path: with ".gz" added or removed. */
static void spell_otherwise(const char *path, char *ret_other, size_t capacity)
{
    size_t n = strlen(path);

    if (n > 3 && strcmp(path + n - 3, ".gz") == 0)
        (void)snprintf(ret_other, capacity, "%.*s", (int)(n - 3), path);
    else
        (void)snprintf(ret_other, capacity, "%s.gz", path);
}

/* Opens f->path. When f->path does not exist, other becomes f->path and is opened. Not blocking, so that a pipe cannot
 * hold the program. */
static int open_either(struct idx_file *f, const char *other)
{
    enum { FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK };
    const char *path = f->path;

    f->fd = open(path, FLAGS);
    if (f->fd < 0 && errno == ENOENT) {
        f->path = other;
        f->fd = open(other, FLAGS);
        if (f->fd < 0 && errno == ENOENT)
            return idx_fail(f, "neither %s nor %s exists", path, other);
    }
    return f->fd < 0 ? idx_fail(f, "cannot open %s: %s", f->path, strerror(errno)) : 0;
}

static int open_content(struct idx_file *f, struct idx *idx)
{
    uint8_t magic[2] = {0, 0};
    struct stat st;

    if (fstat(f->fd, &st) < 0)
        return idx_fail(f, "cannot examine %s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return idx_fail(f, "%s is not a regular file", f->path);
    if (pread(f->fd, magic, sizeof(magic), 0) < 0)
        return idx_fail(f, "cannot read %s: %s", f->path, strerror(errno));
    f->size = (uint64_t)st.st_size;
    return magic[0] == 0x1f && magic[1] == 0x8b ? open_gz(f, idx) : open_plain(f, idx);
}

int idx_open(const char *path, int n_dims, struct idx *ret, char *error, size_t n)
{
    struct idx_file f = {.path = path, .fd = -1, .n_dims = n_dims, .error = error, .error_size = n};
    struct idx idx = {0};
    char other[PATH_MAX];

    if (strlen(path) + sizeof(".gz") > sizeof(other))
        return idx_fail(&f, "cannot open %s: %s", path, strerror(ENAMETOOLONG));
    spell_otherwise(path, other, sizeof(other));
    TRY(open_either(&f, other));
    int r = open_content(&f, &idx);
    (void)close(f.fd); /* open for reading only: nothing to lose */
    if (r == 0)
        *ret = idx;
    return r;
}

void idx_close(struct idx *idx)
{
    if (idx->mapping)
        (void)munmap(idx->mapping, idx->mapping_size); /* our own mapping: cannot fail */
    free(idx->memory);
    *idx = (struct idx){0};
}
