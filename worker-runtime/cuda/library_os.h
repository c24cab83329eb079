#pragma once

/*
 * Libraries of NVIDIA that are opened at run time: by the loader, or out of the wheels that PyTorch installs, which the
 * loader does not know.
 */

enum { LIBRARY_FILES_MAX = 2 };

/* Where a library may be, the newest version first; NULL behind the last. */
struct library_place {
    const char *names[LIBRARY_FILES_MAX];  /* as the loader knows them */
    const char *wheels[LIBRARY_FILES_MAX]; /* the same files, below a folder of packages of Python */
};

/* The handle of dlopen(), which stays open. path: only this file, or NULL: the first that there is of the loader's, below
 * $VIRTUAL_ENV, below $CONDA_PREFIX, and beside the first python3 on PATH. NULL: none can be opened. */
void *library_open(const struct library_place *place, const char *path);
