/*
 * Finding and opening a backend plugin.
 *
 * Happy path: the file is found, opened with its symbols to itself, and answers with a table of our version.
 * Ways it fails: no such file anywhere (the build had no nvcc), a file that the loader refuses, another
 * version.
 */

#include "worker-runtime/cuda/backend_os.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/error.h"

/* The folder of the running program, "" when it is not known. */
static void program_folder(char folder[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

/* False: no such file there. */
static bool is_in(const char *folder, const char *file, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/lib%s.so", folder, file);
    return folder[0] && n > 0 && n < PATH_MAX && access(path, R_OK) == 0;
}

static int find_plugin(const char *file, char path[PATH_MAX])
{
    char program[PATH_MAX];
    const char *folder = env_text("CRW_PLUGIN_DIR");

    if (folder) {
        if (is_in(folder, file, path))
            return 0;
        return crw_fail(CRW_E_NOT_FOUND, "there is no lib%s.so in %s, which CRW_PLUGIN_DIR names", file,
                        folder);
    }
    program_folder(program);
    if (is_in(program, file, path) || is_in(CRW_PLUGIN_FOLDER, file, path))
        return 0;
    return crw_fail(CRW_E_NOT_FOUND,
                    "there is no lib%s.so in %s or %s; it is built only where its compiler is "
                    "(set CRW_PLUGIN_DIR if it lies elsewhere)",
                    file, program, CRW_PLUGIN_FOLDER);
}

static int check(const char *path, const struct backend *backend)
{
    if (backend && backend->abi == BACKEND_ABI)
        return 0;
    return crw_fail(CRW_E_MISMATCH,
                    "%s was built for another version of this library (its interface is number "
                    "%u, ours %u); build and install both together",
                    path, backend ? backend->abi : 0, BACKEND_ABI);
}

int backend_open(const char *file, struct backend_plugin *ret_plugin)
{
    char path[PATH_MAX];
    TRY(find_plugin(file, path));

    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL |
                                     RTLD_NODELETE); /* CUDA leaves threads and exit handlers behind */
    if (!library)
        return crw_fail(CRW_E_MISMATCH, "%s cannot be loaded: %s", path, dlerror());
    /* POSIX wants this to work; ISO C has no such conversion. */
    backend_function function = __extension__(backend_function) dlsym(library, BACKEND_SYMBOL);
    const struct backend *backend = function ? function() : NULL;
    int r = check(path, backend);
    if (r) {
        (void)dlclose(library); /* nothing of it is in use */
        return r;
    }
    *ret_plugin = (struct backend_plugin){.library = library, .backend = backend};
    return 0;
}

void backend_close(struct backend_plugin *plugin)
{
    if (plugin->library)
        (void)dlclose(plugin->library); /* a library that stays is no harm */
    *plugin = (struct backend_plugin){0};
}
