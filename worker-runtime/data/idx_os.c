/*
 * IDX files of bytes (the MNIST family): big-endian magic 00 00 08 <dimensions>, one u32 for each
 * dimension, then the bytes, nothing behind them.
 *
 * A plain file is mapped, so that the ranks of a host share its pages. A gzip file is inflated by each process into
 * memory of its own: a plain file beside it is taken first. What decides is the first two bytes, not the name. The header is not trusted: the length
 * that it promises is compared with the file before anything is allocated, exactly for a plain file, and
 * by the best ratio that deflate can reach for a compressed one.
 */

#include "base/cleanup.h"
#include "worker-runtime/crw.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum {
    HEADER_MAX = 4 + 3 * 4,
    TYPE_BYTES = 0x08,
    GZ_BUFFER = 256 * 1024,
    GZ_READ_MAX = 1 << 30,    /* gzread() counts in int */
    DEFLATE_RATIO_MAX = 1033, /* 258 bytes out of 2 bits, and a little for the frame */
};

struct idx_owner {
    void *mapping; /* NULL: not a plain file */
    size_t mapping_size;
    uint8_t *memory; /* inflated; NULL: not a gzip file */
};

static uint32_t read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static size_t header_size(int n_dims)
{
    return 4 + 4 * ((size_t)n_dims + 1);
}

/* Product of all dimensions; false when it does not fit. */
static bool count_item_bytes(const struct crw_idx *idx, uint64_t *ret_n_bytes)
{
    uint64_t n = idx->n_items;

    for (int i = 0; i < idx->n_dims; i++)
        if (__builtin_mul_overflow(n, idx->dims[i], &n))
            return false;
    *ret_n_bytes = n;
    return n <= SSIZE_MAX - HEADER_MAX;
}

/* Fills in sizes from header_size(n_dims) bytes. */
static int parse_header(const char *path, const uint8_t *header, int n_dims, struct crw_idx *idx,
                        uint64_t *ret_n_bytes)
{
    if (header[0] != 0 || header[1] != 0)
        return crw_fail(CRW_E_DATA, "%s is not an IDX file: it starts with bytes %02x %02x, not 00 00", path,
                        header[0], header[1]);
    if (header[2] != TYPE_BYTES)
        return crw_fail(CRW_E_DATA, "%s holds elements of IDX type 0x%02x; only bytes (0x08) are supported",
                        path, header[2]);
    if (header[3] != n_dims + 1)
        return crw_fail(CRW_E_DATA, "%s has %d dimensions, expected %d: %s", path, header[3], n_dims + 1,
                        n_dims == 0 ? "it is not a file of labels" : "it is not a file of images");
    idx->n_items = read_u32(header + 4);
    idx->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++) {
        idx->dims[i] = read_u32(header + 8 + 4 * i);
        if (idx->dims[i] == 0)
            return crw_fail(CRW_E_DATA, "the header of %s is damaged: its items have no size", path);
    }
    if (!count_item_bytes(idx, ret_n_bytes))
        return crw_fail(CRW_E_DATA, "%s promises more bytes than there can be: the header is damaged", path);
    return 0;
}

static int fail_length(const char *path, uint64_t actual, uint64_t expected)
{
    return crw_fail(CRW_E_DATA, "%s is %s: it has %" PRIu64 " bytes and its header promises %" PRIu64, path,
                    actual < expected ? "truncated" : "too long", actual, expected);
}

static int open_plain(const char *path, int fd, uint64_t file_size, int n_dims, struct crw_idx *idx,
                      struct idx_owner *owner)
{
    uint64_t n_bytes = 0;
    void *mapping;
    int r;

    if (file_size < header_size(n_dims))
        return crw_fail(CRW_E_DATA, "%s is truncated: %" PRIu64 " bytes are not even a header", path,
                        file_size);
    mapping = mmap(NULL, file_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapping == MAP_FAILED)
        return crw_fail_errno(-errno, "cannot map %s", path);
    r = parse_header(path, mapping, n_dims, idx, &n_bytes);
    if (r == 0 && header_size(n_dims) + n_bytes != file_size)
        r = fail_length(path, file_size, header_size(n_dims) + n_bytes);
    if (r) {
        (void)munmap(mapping, file_size); /* our own mapping: cannot fail */
        return r;
    }
    owner->mapping = mapping;
    owner->mapping_size = file_size;
    idx->data = (const uint8_t *)mapping + header_size(n_dims);
    return 0;
}

static int fail_gz(const char *path, gzFile gz)
{
    int code;
    const char *words = gzerror(gz, &code);

    if (code == Z_ERRNO)
        return crw_fail_errno(errno ? -errno : -EIO, "cannot read %s", path);
    if (code == Z_MEM_ERROR)
        return crw_fail_errno(-ENOMEM, "cannot inflate %s", path);
    if (code == Z_BUF_ERROR)
        return crw_fail(CRW_E_DATA, "%s is truncated: its compressed data ends in the middle", path);
    return crw_fail(CRW_E_DATA, "%s is damaged: %s", path, words);
}

/* Reads up to n bytes; *ret_n is how many came before the end of the data. */
static int read_gz(const char *path, gzFile gz, uint8_t *to, size_t n, size_t *ret_n)
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
    /* A stream that is cut off reads as a short count with the error only noted. */
    (void)gzerror(gz, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
        return fail_gz(path, gz);
    *ret_n = done;
    return 0;
}

static int inflate_all(const char *path, gzFile gz, uint64_t file_size, int n_dims, struct crw_idx *idx,
                       struct idx_owner *owner)
{
    _cleanup_free_ uint8_t *memory = NULL;
    uint8_t header[HEADER_MAX], beyond;
    uint64_t n_bytes = 0;
    size_t n;
    int r;

    r = read_gz(path, gz, header, header_size(n_dims), &n);
    if (r)
        return r;
    if (n < header_size(n_dims))
        return crw_fail(CRW_E_DATA, "%s is truncated: %zu bytes are not even a header", path, n);
    r = parse_header(path, header, n_dims, idx, &n_bytes);
    if (r)
        return r;
    if (n_bytes / DEFLATE_RATIO_MAX > file_size)
        return crw_fail(CRW_E_DATA,
                        "%s is truncated: its header promises %" PRIu64
                        " bytes, which cannot come "
                        "out of %" PRIu64,
                        path, n_bytes, file_size);
    memory = memory_has_room(n_bytes, 1) ? malloc(n_bytes + 1) : NULL;
    if (!memory)
        return crw_fail_errno(-ENOMEM, "cannot hold the %" PRIu64 " bytes of %s", n_bytes, path);
    r = read_gz(path, gz, memory, n_bytes, &n);
    if (r)
        return r;
    if (n < n_bytes)
        return fail_length(path, header_size(n_dims) + n, header_size(n_dims) + n_bytes);
    /* Asking for one byte more also makes zlib check the sum behind the data. */
    r = read_gz(path, gz, &beyond, 1, &n);
    if (r)
        return r;
    if (n != 0)
        return crw_fail(CRW_E_DATA,
                        "%s is too long: data follows the %" PRIu64 " bytes that its header promises", path,
                        header_size(n_dims) + n_bytes);
    idx->data = owner->memory = steal_ptr(memory);
    return 0;
}

static int open_gz(const char *path, int fd, uint64_t file_size, int n_dims, struct crw_idx *idx,
                   struct idx_owner *owner)
{
    int gz_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    gzFile gz;
    int r;

    if (gz_fd < 0)
        return crw_fail_errno(-errno, "cannot open %s", path);
    gz = gzdopen(gz_fd, "rb");
    if (!gz) {
        (void)close(gz_fd);
        return crw_fail_errno(-ENOMEM, "cannot inflate %s", path);
    }
    (void)gzbuffer(gz, GZ_BUFFER); /* only faster */
    r = inflate_all(path, gz, file_size, n_dims, idx, owner);
    (void)gzclose_r(gz); /* everything was read and checked */
    return r;
}

/* The other spelling of path: with ".gz" added, or without it. */
static void spell_otherwise(const char *path, char *ret_other, size_t capacity)
{
    size_t n = strlen(path);

    if (n > 3 && strcmp(path + n - 3, ".gz") == 0)
        (void)snprintf(ret_other, capacity, "%.*s", (int)(n - 3), path);
    else
        (void)snprintf(ret_other, capacity, "%s.gz", path);
}

/* Opens path, or other when path does not exist; *ret_found is the one that was opened. Not blocking, so
 * that a pipe of that name cannot hold us. */
static int open_either(const char *path, const char *other, const char **ret_found, int *ret_fd)
{
    enum { FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK };
    const char *found = path;
    int fd = open(path, FLAGS);

    if (fd < 0 && errno == ENOENT) {
        found = other;
        fd = open(other, FLAGS);
        if (fd < 0 && errno == ENOENT)
            return crw_fail(CRW_E_DATA, "neither %s nor %s exists", path, other);
    }
    if (fd < 0)
        return crw_fail_errno(-errno, "cannot open %s", found);
    *ret_found = found;
    *ret_fd = fd;
    return 0;
}

static int open_content(const char *path, int fd, int n_dims, struct crw_idx *idx, struct idx_owner *owner)
{
    uint8_t magic[2] = {0, 0};
    struct stat st;

    if (fstat(fd, &st) < 0)
        return crw_fail_errno(-errno, "cannot examine %s", path);
    if (!S_ISREG(st.st_mode))
        return crw_fail(CRW_E_DATA, "%s is not a regular file", path);
    if (pread(fd, magic, sizeof(magic), 0) < 0)
        return crw_fail_errno(-errno, "cannot read %s", path);
    if (magic[0] == 0x1f && magic[1] == 0x8b)
        return open_gz(path, fd, (uint64_t)st.st_size, n_dims, idx, owner);
    return open_plain(path, fd, (uint64_t)st.st_size, n_dims, idx, owner);
}

int crw_idx_open(const char *path, int n_dims, struct crw_idx *ret)
{
    _cleanup_free_ struct idx_owner *owner = NULL;
    _cleanup_close_ int fd = -1;
    struct crw_idx idx = {0};
    char other[PATH_MAX];
    const char *found = path;
    int r;

    NEED(path && ret, CRW_E_ARGUMENT);
    if (n_dims != 0 && n_dims != 2)
        return crw_fail(CRW_E_ARGUMENT, "items of %d dimensions are not supported, only 0 or 2", n_dims);
    if (strlen(path) + sizeof(".gz") > sizeof(other))
        return crw_fail_errno(-ENAMETOOLONG, "cannot open %s", path);
    spell_otherwise(path, other, sizeof(other));
    r = open_either(path, other, &found, &fd);
    if (r)
        return r;
    owner = calloc(1, sizeof(*owner));
    if (!owner)
        return crw_fail_errno(-ENOMEM, "cannot open %s", found);
    r = open_content(found, fd, n_dims, &idx, owner);
    if (r)
        return r;
    idx.owner = steal_ptr(owner);
    *ret = idx;
    return 0;
}

void crw_idx_close(struct crw_idx *idx)
{
    struct idx_owner *owner = idx ? idx->owner : NULL;

    if (!owner)
        return;
    if (owner->mapping)
        (void)munmap(owner->mapping, owner->mapping_size); /* our own mapping: cannot fail */
    free(owner->memory);
    free(owner);
    *idx = (struct crw_idx){0};
}
