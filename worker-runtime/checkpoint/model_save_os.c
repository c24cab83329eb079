/*
 * A model's parameters as a file for others: safetensors under PyTorch's names, nothing else in it. To go on
 * training, a snapshot is needed (crw_snapshots_save()).
 */

#include "worker-runtime/crw.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/random_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/checkpoint/safetensors.h"
#include "worker-runtime/checkpoint/snapshot_file_os.h"

/* The metadata of PyTorch's own files; transformers refuses a file without it. */
static const struct crw_pair format = {"format", "pt"};

static int encode(const struct crw_model *model, const char *path, struct buf *out)
{
    size_t n_parameters = crw_model_n_tensors(model), n_buffers = crw_model_n_buffers(model);
    _cleanup_free_ struct crw_tensor *tensors = calloc(n_parameters + n_buffers + 1, sizeof(*tensors));
    const char *why = "";
    int r = -ENOMEM;

    if (tensors) {
        for (size_t i = 0; i < n_parameters; i++)
            tensors[i] = crw_model_tensor(model, i);
        for (size_t i = 0; i < n_buffers; i++)
            tensors[n_parameters + i] = crw_model_buffer(model, i);
        r = safetensors_encode(tensors, n_parameters + n_buffers, &format, 1, out, &why);
    }
    if (r > 0)
        return crw_fail(CRW_E_ARGUMENT, "cannot save the model to %s: %s", path, why);
    return r < 0 ? crw_fail_errno(r, "cannot save the model to %s", path) : 0;
}

/* The folder of path, "." without one, and the name in it. */
static int split_path(const char *path, char folder[PATH_MAX], const char **ret_name)
{
    const char *slash = strrchr(path, '/');

    *ret_name = slash ? slash + 1 : path;
    if (!**ret_name || strlen(path) + 2 > PATH_MAX)
        return crw_fail_errno(**ret_name ? -ENAMETOOLONG : -EISDIR, "cannot save the model to \"%s\"", path);
    if (!slash)
        (void)strcpy(folder, ".");
    else
        (void)snprintf(folder, PATH_MAX, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return 0;
}

/* The number in the temporary name is random: in containers process numbers repeat, so a killed process
 * would leave a file in the way of its successor, and two hosts may save to one network folder. */
static int write_durably(const char *path, const struct buf *bytes)
{
    char folder[PATH_MAX], temporary[NAME_MAX + 1], what[PATH_MAX + 8];
    struct stat st;
    uint64_t number;
    const char *name;

    TRY(split_path(path, folder, &name));
    _cleanup_close_ int folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0)
        return crw_fail_errno(-errno, "cannot save the model to %s", path);
    if (fstatat(folder_fd, name, &st, 0) == 0 && !S_ISREG(st.st_mode)) /* /dev/null would end as a file */
        return crw_fail(CRW_E_ARGUMENT, "cannot save the model to %s: it is no regular file", path);
    (void)snprintf(what, sizeof(what), "model %s", path);
    if (random_fill(&number, sizeof(number)) < 0)
        return crw_fail_errno(-EIO, "cannot save the model to %s", path);
    (void)snprintf(temporary, sizeof(temporary), ".%.200s.%016" PRIx64 ".tmp", name, number);
    return snapshot_file_replace(&snapshot_io_system, folder_fd, what, temporary, name, buf_bytes(bytes),
                                 buf_size(bytes), NULL);
}

int crw_model_save(const struct crw_model *model, const char *path)
{
    _cleanup_(buf_finish) struct buf bytes = {0};

    NEED(model && path, CRW_E_ARGUMENT);
    TRY(encode(model, path, &bytes));
    return write_durably(path, &bytes);
}
