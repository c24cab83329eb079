/*
 * Loading snapshots: one file is read whole into memory and checked before any of it is handed out; the
 * newest valid one of a folder is found by trying from the highest step down.
 *
 * A file that fails its checks, or that the disk cannot give back, is skipped with a sentence. What is not
 * the file's fault (no memory, no permission, another network) ends the search: falling back silently
 * would throw away work that is still there.
 */

#include "base/cleanup.h"
#include "worker-runtime/base/error.h"
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

static int check_content(struct crw_snapshot *s, size_t n_bytes, const char *path)
{
    char why[SNAPSHOT_WHY_MAX];
    int r = snapshot_image_check(s->bytes, n_bytes, &s->st, &s->step, why);

    if (r == SNAPSHOT_IMAGE_E_DAMAGED)
        return crw_fail(CRW_E_DAMAGED, "snapshot %s is damaged: %s", path, why);
    if (r == SNAPSHOT_IMAGE_E_FORMAT)
        return crw_fail(CRW_E_MISMATCH, "snapshot %s is of another version: %s", path, why);
    return r < 0 ? crw_fail_errno(r, "cannot check snapshot %s", path) : 0;
}

/*
 * Checks the length and the header alone, from which the length of the file follows: a file that only
 * claims to be huge is found out before there is memory for it, and the one before it can be used.
 */
static int check_file_header(int fd, uint64_t size, const char *path)
{
    _cleanup_free_ uint8_t *first = NULL, *head = NULL;
    struct safetensors st = {0};
    uint64_t n_header;
    const char *why = "it was cut while it was read";
    size_t n;
    int r;

    r = snapshot_file_read(fd, path, size < 8 ? size : 8, &first, &n);
    if (r)
        return r;
    r = n < 8 && size >= 8 ? SAFETENSORS_E_BAD : safetensors_header_length(first, size, &n_header, &why);
    if (r == 0)
        r = snapshot_file_read(fd, path, 8 + n_header, &head, &n);
    if (r < 0)
        return r;
    if (r == 0)
        r = n < 8 + n_header ? SAFETENSORS_E_BAD : safetensors_parse(head, (size_t)size, &st, &why);
    safetensors_finish(&st);
    if (r == SAFETENSORS_E_BAD)
        return crw_fail(CRW_E_DAMAGED, "snapshot %s is damaged: %s", path, why);
    return r < 0 ? crw_fail_errno(r, "cannot check snapshot %s", path) : 0;
}

static int load_content(struct crw_snapshot *s, int folder_fd, const char *name, const char *path)
{
    _cleanup_close_ int fd = -1;
    uint64_t size;
    size_t n_bytes;
    int r;

    r = snapshot_file_open(folder_fd, name, path, &fd, &size);
    if (r == 0)
        r = check_file_header(fd, size, path);
    if (r == 0)
        r = snapshot_file_read(fd, path, size, &s->bytes, &n_bytes);
    return r == 0 ? check_content(s, n_bytes, path) : r;
}

int snapshot_load(int folder_fd, const char *name, const char *path, struct crw_snapshot **ret)
{
    struct crw_snapshot *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return crw_fail_errno(-ENOMEM, "cannot open snapshot %s", path);
    r = load_content(s, folder_fd, name, path);
    if (r) {
        crw_snapshot_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

int crw_snapshot_open(const char *path, struct crw_snapshot **ret)
{
    NEED(path && ret, CRW_E_ARGUMENT);
    return snapshot_load(AT_FDCWD, path, path, ret);
}

/* ---- the newest of a folder ---- */

static int load_snapshot_entry(int folder_fd, const char *folder, uint64_t step, struct crw_snapshot **ret)
{
    char name[SNAPSHOT_NAME_SIZE], path[PATH_MAX + SNAPSHOT_NAME_SIZE + 1];
    struct crw_snapshot *s = NULL;
    int r;

    snapshot_name(step, name);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    r = snapshot_load(folder_fd, name, path, &s);
    if (r)
        return r;
    assert(s);
    if (s->step != step) {
        r = crw_fail(CRW_E_DAMAGED, "snapshot %s holds step %" PRIu64 ": it was renamed", path, s->step);
        crw_snapshot_close(s);
        return r;
    }
    *ret = s;
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

static bool is_the_files_fault(int r)
{
    return r == CRW_E_DAMAGED || r == -EIO;
}

static int load_newest_snapshot(int folder_fd, const char *folder, const struct snapshot_entry *entries,
                                size_t n, void (*warn)(void *data, const char *sentence), void *warn_data,
                                struct crw_snapshot **ret)
{
    size_t n_damaged = 0;

    for (size_t i = 0; i < n; i++) {
        int r = load_snapshot_entry(folder_fd, folder, entries[i].step, ret);

        if (r == CRW_E_NOT_FOUND)
            continue; /* removed since the folder was listed */
        if (!is_the_files_fault(r))
            return r;
        n_damaged++;
        if (warn)
            warn(warn_data, crw_error_message());
    }
    if (n_damaged > 0)
        return crw_fail(CRW_E_NOT_FOUND, "folder %s has no valid snapshot; %zu damaged were skipped", folder,
                        n_damaged);
    return crw_fail(CRW_E_NOT_FOUND, "folder %s has no snapshot", folder);
}

int crw_snapshot_open_newest(const char *folder, const char *meta_key, const char *meta_value,
                             void (*warn)(void *data, const char *sentence), void *warn_data,
                             struct crw_snapshot **ret)
{
    _cleanup_free_ struct snapshot_entry *entries = NULL;
    _cleanup_close_ int folder_fd = -1;
    struct crw_snapshot *s = NULL;
    size_t n;
    int r;

    NEED(folder && ret, CRW_E_ARGUMENT);
    folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0 && errno == ENOENT)
        return crw_fail(CRW_E_NOT_FOUND, "there is no snapshot folder %s", folder);
    if (folder_fd < 0)
        return crw_fail_errno(-errno, "cannot open the snapshot folder %s", folder);
    r = snapshot_folder_list(folder_fd, folder, &entries, &n);
    if (r == 0)
        r = load_newest_snapshot(folder_fd, folder, entries, n, warn, warn_data, &s);
    if (r)
        return r;
    assert(s);
    r = check_meta(s, folder, meta_key, meta_value);
    if (r) {
        crw_snapshot_close(s);
        return r;
    }
    *ret = s;
    return 0;
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
    const struct safetensors_tensor *found;
    char has[128], wants[128];

    NEED(s && t && t->name, CRW_E_ARGUMENT);
    found = safetensors_find_tensor(&s->st, t->name);
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
