#include "worker-runtime/cuda/library_os.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

static void *open_file(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_wheel(const char *prefix, const char *wheel)
{
    char pattern[PATH_MAX];
    glob_t found;
    void *library = NULL;
    int n = snprintf(pattern, sizeof(pattern), "%s/{lib*,local/lib}/python3*/*-packages/%s", prefix, wheel);
    if (n < 0 || (size_t)n >= sizeof(pattern) || glob(pattern, GLOB_BRACE, NULL, &found) != 0)
        return NULL;
    for (size_t i = 0; !library && i < found.gl_pathc; i++)
        library = open_file(found.gl_pathv[i]);
    globfree(&found);
    return library;
}

/* prefix: of a Python, or NULL. Below /usr, Debian's pip has its packages in /usr/local. */
static void *open_below(const struct library_place *place, const char *prefix)
{
    void *library = NULL;
    for (int i = 0; prefix && !library && i < LIBRARY_FILES_MAX && place->wheels[i]; i++)
        library = open_wheel(prefix, place->wheels[i]);
    return library;
}

/* Below PREFIX, where PREFIX/bin/python3 is the first in PATH. */
static void *open_beside_python(const struct library_place *place)
{
    char path[PATH_MAX], program[PATH_MAX + sizeof("/python3")], *rest = path, *folder;
    const char *value = getenv("PATH");
    if (!value || strlen(value) >= sizeof(path))
        return NULL;
    memcpy(path, value, strlen(value) + 1);
    while ((folder = strsep(&rest, ":"))) {
        (void)snprintf(program, sizeof(program), "%s/python3", folder); /* it fits */
        if (folder[0] != '/' || access(program, X_OK) != 0)
            continue;
        char *slash = strrchr(folder, '/');
        *slash = '\0';
        return open_below(place, folder);
    }
    return NULL;
}

void *library_open(const struct library_place *place, const char *path)
{
    static const char *const prefixes[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
    void *library = NULL;
    if (path)
        return open_file(path);
    for (int i = 0; !library && i < LIBRARY_FILES_MAX && place->names[i]; i++)
        library = open_file(place->names[i]);
    for (size_t i = 0; !library && i < ARRAY_SIZE(prefixes); i++)
        library = open_below(place, getenv(prefixes[i]));
    return library ? library : open_beside_python(place);
}
