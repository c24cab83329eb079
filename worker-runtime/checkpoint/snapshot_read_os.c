/*
 * Loading snapshots: a file is read into memory and checked before any part of the file is handed out; the
 * newest valid snapshot of a folder is found by trying from the highest step down.
 *
 * A file that fails the checks is skipped with a sentence. Causes outside the file (a disk or server that does not
 * give the file back, no memory, no permission, another network) end the search: falling back silently would throw
 * work away. For the same reason a folder with damaged files alone is not empty.
 */

#include "base/cleanup.h"
#include "worker-runtime/base/error.h"
#include "base/memory.h"
#include "worker-runtime/checkpoint/snapshot.h"
#include "worker-runtime/checkpoint/snapshot_image.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct crw_snapshot {
    uint8_t *bytes;
    struct safetensors st;
    uint64_t step;
};

void crw_snapshot_close(struct crw_snapshot *s)
{
    if (!s)
        return;
    safetensors_finish(&s->st);
    free(s->bytes);
    free(s);
}

static void close_snapshot(struct crw_snapshot **s)
{
    crw_snapshot_close(*s);
}

enum { PIECE = 64 << 10 };

/* A file while it is checked. */
struct reading {
    int fd;
    uint8_t *to;  /* room for the whole file, or for a piece */
    size_t piece; /* 0: the whole file */
};

static int read_crc(void *data, uint64_t at, uint64_t n_bytes, uint32_t *ret_crc)
{
    const struct reading *f = data;
    uint32_t crc = 0;

    while (n_bytes > 0) {
        size_t piece = f->piece && f->piece < n_bytes ? f->piece : (size_t)n_bytes;
        uint8_t *to = f->piece ? f->to : f->to + at;
        ssize_t n = snapshot_file_read(f->fd, to, piece, at);

        if (n <= 0)
            return n < 0 ? (int)n : -EIO; /* cut meanwhile */
        crc = crw_crc32c(crc, to, (size_t)n);
        at += (uint64_t)n;
        n_bytes -= (uint64_t)n;
    }
    *ret_crc = crc;
    return 0;
}

static int check_content(struct crw_snapshot *s, const uint8_t *header, size_t size, struct reading *f,
                         const char *path)
{
    const struct snapshot_bytes bytes = {read_crc, f};
    char why[SNAPSHOT_WHY_MAX];
    int r = snapshot_image_check(header, size, &bytes, &s->st, &s->step, why);

    if (r == SNAPSHOT_IMAGE_E_DAMAGED)
        return crw_fail(CRW_E_DAMAGED, "snapshot %s is damaged: %s", path, why);
    if (r == SNAPSHOT_IMAGE_E_FORMAT)
        return crw_fail(CRW_E_MISMATCH, "snapshot %s is of another version: %s", path, why);
    return r < 0 ? crw_fail_errno(r, "cannot read snapshot %s", path) : 0;
}

/*
 * Reads length and header alone, from which the length of the file follows: a file that only claims to be
 * huge is found out before there is memory for the file, and the snapshot before can be used. free() the header.
 */
static int read_file_header(int fd, uint64_t size, const char *path, uint8_t **ret)
{
    _cleanup_free_ uint8_t *head = NULL;
    struct safetensors st = {0};
    uint8_t first[8];
    uint64_t n_header = 0;
    const char *why = "it was cut while it was read";
    ssize_t n = snapshot_file_read(fd, first, sizeof(first), 0);

    if (n < 0)
        return crw_fail_errno((int)n, "cannot read snapshot %s", path);
    int r = n < 8 && size >= 8 ? SAFETENSORS_E_BAD : safetensors_header_length(first, size, &n_header, &why);
    if (r == 0) {
        head = malloc(8 + n_header);
        n = head ? snapshot_file_read(fd, head, 8 + n_header, 0) : -ENOMEM;
        r = n < 0 ? (int)n : SAFETENSORS_E_BAD;
        if (n == (ssize_t)(8 + n_header))
            r = safetensors_parse(head, (size_t)size, &st, &why);
    }
    safetensors_finish(&st);
    if (r == SAFETENSORS_E_BAD)
        return crw_fail(CRW_E_DAMAGED, "snapshot %s is damaged: %s", path, why);
    if (r < 0)
        return crw_fail_errno(r, "cannot read snapshot %s", path);
    *ret = steal_ptr(head);
    return 0;
}

static int load_content(struct crw_snapshot *s, int folder_fd, const char *name, const char *path, bool keeps)
{
    _cleanup_close_ int fd = -1;
    _cleanup_free_ uint8_t *header = NULL;
    struct reading f = {.piece = keeps ? 0 : PIECE};
    uint64_t size;

    TRY(snapshot_file_open(folder_fd, name, path, &fd, &size));
    TRY(read_file_header(fd, size, path, &header));
    f.fd = fd;
    if (memory_has_room(keeps ? size : PIECE, 1))
        f.to = s->bytes = malloc(keeps ? (size_t)size : PIECE);
    if (!s->bytes)
        return crw_fail_errno(-ENOMEM, "cannot hold the %" PRIu64 " bytes of snapshot %s", size, path);
    return check_content(s, header, (size_t)size, &f, path);
}

static int load_file(int folder_fd, const char *name, const char *path, bool keeps, struct crw_snapshot **ret)
{
    _cleanup_(close_snapshot) struct crw_snapshot *s = calloc(1, sizeof(*s));

    TRY(s ? load_content(s, folder_fd, name, path, keeps)
          : crw_fail_errno(-ENOMEM, "cannot open snapshot %s", path));
    *ret = steal_ptr(s);
    return 0;
}

int crw_snapshot_open(const char *path, struct crw_snapshot **ret)
{
    NEED(path && ret, CRW_E_ARGUMENT);
    return load_file(AT_FDCWD, path, path, true, ret);
}

/* ---- the newest of a folder ---- */

int snapshot_load(int folder_fd, const char *folder, uint64_t step, bool keeps, struct crw_snapshot **ret)
{
    char name[SNAPSHOT_NAME_SIZE], path[PATH_MAX + SNAPSHOT_NAME_SIZE + 1];
    _cleanup_(close_snapshot) struct crw_snapshot *s = NULL;

    snapshot_name(step, name);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    TRY(load_file(folder_fd, name, path, keeps, &s));
    assert(s);
    if (s->step != step)
        return crw_fail(CRW_E_DAMAGED, "snapshot %s holds step %" PRIu64 ": it was renamed", path, s->step);
    *ret = steal_ptr(s);
    return 0;
}

static int check_meta(const struct crw_snapshot *s, const char *folder, const char *key, const char *value)
{
    const char *found = key ? crw_snapshot_meta(s, key) : NULL;

    if (!key || (found && value && strcmp(found, value) == 0))
        return 0;
    return crw_fail(CRW_E_MISMATCH,
                    "the newest snapshot in %s, of step %" PRIu64
                    ", was made by another program or "
                    "network: its %s is \"%s\" and \"%s\" is needed; use another folder",
                    folder, s->step, key, found ? found : "", value ? value : "");
}

static int load_newest_snapshot(int folder_fd, const char *folder, const struct snapshot_entry *entries,
                                size_t n, void (*warn)(void *data, const char *sentence), void *warn_data,
                                struct crw_snapshot **ret)
{
    size_t n_damaged = 0;

    for (size_t i = 0; i < n; i++) {
        int r = snapshot_load(folder_fd, folder, entries[i].step, true, ret);

        if (r == CRW_E_NOT_FOUND)
            continue; /* removed since the folder was listed */
        if (r != CRW_E_DAMAGED)
            return r;
        n_damaged++;
        if (warn)
            warn(warn_data, crw_error_message());
    }
    if (n_damaged > 0)
        return crw_fail(
            CRW_E_DAMAGED,
            "folder %s has no valid snapshot, and %zu damaged ones: use another folder to begin anew, "
            "or bring a whole file back",
            folder, n_damaged);
    return crw_fail(CRW_E_NOT_FOUND, "folder %s has no snapshot", folder);
}

int crw_snapshot_open_newest(const char *folder, const char *meta_key, const char *meta_value,
                             void (*warn)(void *data, const char *sentence), void *warn_data,
                             struct crw_snapshot **ret)
{
    _cleanup_free_ struct snapshot_entry *entries = NULL;
    _cleanup_(close_snapshot) struct crw_snapshot *s = NULL;
    size_t n;

    NEED(folder && ret, CRW_E_ARGUMENT);
    _cleanup_close_ int folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0 && errno == ENOENT)
        return crw_fail(CRW_E_NOT_FOUND, "there is no snapshot folder %s", folder);
    if (folder_fd < 0)
        return crw_fail_errno(-errno, "cannot open the snapshot folder %s", folder);
    int r = snapshot_folder_list(folder_fd, folder, &entries, &n);
    if (r == 0)
        r = load_newest_snapshot(folder_fd, folder, entries, n, warn, warn_data, &s);
    assert(r || s);
    if (r == 0)
        r = check_meta(s, folder, meta_key, meta_value);
    if (r == 0)
        *ret = steal_ptr(s);
    return r;
}

/* ---- content ---- */

uint64_t crw_snapshot_step(const struct crw_snapshot *s)
{
    return s ? s->step : CRW_NO_STEP;
}

const char *crw_snapshot_meta(const struct crw_snapshot *s, const char *key)
{
    const struct safetensors_string *string = s && key ? safetensors_find_string(&s->st, key) : NULL;

    return string ? string->value : NULL;
}

/* "F32 [2,3]" */
static const char *shape_text(enum crw_dtype dtype, int n_dims, const int64_t *dims, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "%s [", safetensors_dtype_name(dtype));

    for (int i = 0; i < n_dims && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, i ? ",%" PRId64 : "%" PRId64, dims[i]);
    if (n < size)
        (void)snprintf(text + n, size - n, "]");
    return text;
}

int crw_snapshot_read(const struct crw_snapshot *s, const struct crw_tensor *t)
{
    char has[128], wants[128];

    NEED(s && t && t->name, CRW_E_ARGUMENT);
    const struct safetensors_tensor *found = safetensors_find_tensor(&s->st, t->name);
    if (!found)
        return crw_fail(CRW_E_MISMATCH, "the snapshot of step %" PRIu64 " has no tensor %s", s->step,
                        t->name);
    if ((unsigned)t->dtype >= CRW_DTYPE_COUNT || t->n_dims < 0 || t->n_dims > SAFETENSORS_DIMS_MAX)
        return crw_fail(CRW_E_ARGUMENT, "tensor %s has no type or an impossible shape", t->name);
    if (found->dtype != t->dtype || found->n_dims != t->n_dims ||
        memcmp(found->dims, t->dims, (size_t)t->n_dims * sizeof(*t->dims)) != 0)
        return crw_fail(CRW_E_MISMATCH, "tensor %s is %s in the snapshot of step %" PRIu64 " and %s here",
                        t->name, shape_text(found->dtype, found->n_dims, found->dims, has, sizeof(has)),
                        s->step, shape_text(t->dtype, t->n_dims, t->dims, wants, sizeof(wants)));
    NEED(t->data || found->end == found->begin, CRW_E_ARGUMENT);
    if (found->end > found->begin)
        memcpy(t->data, s->bytes + s->st.data_at + found->begin, (size_t)(found->end - found->begin));
    return 0;
}
