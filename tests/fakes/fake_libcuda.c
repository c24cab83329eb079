/*
 * A driver of NVIDIA that cannot be used, as libcuda.so.1 for LD_LIBRARY_PATH. FAKE_LIBCUDA=old: its version is below that of every
 * toolkit that is in use. FAKE_LIBCUDA=hung: it never answers, as one whose GPU fell off the bus.
 */

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                             int *status);
CUresult cuGetExportTable(const void **table, const void *id);

enum { SUCCESS = 0, NOT_SUPPORTED = 801, OLD = 11040 };

static int is(const char *kind)
{
    const char *asked = getenv("FAKE_LIBCUDA");

    return asked && strcmp(asked, kind) == 0;
}

static void hang(void)
{
    while (is("hung"))
        (void)pause();
}

CUresult cuInit(unsigned flags)
{
    hang();
    return NOT_SUPPORTED;
}

CUresult cuDriverGetVersion(int *version)
{
    hang();
    *version = OLD;
    return SUCCESS;
}

static CUresult refuse(void)
{
    hang();
    return NOT_SUPPORTED;
}

/* The runtime takes no driver that lacks a function, so every name has one. */
static void *find(const char *name)
{
    CUresult (*init)(unsigned) = cuInit;
    CUresult (*version)(int *) = cuDriverGetVersion;
    CUresult (*address)(const char *, void **, int, unsigned long long, int *) = cuGetProcAddress_v2;
    CUresult (*table)(const void **, const void *) = cuGetExportTable;
    CUresult (*other)(void) = refuse;
    void *function;

    if (strcmp(name, "cuInit") == 0)
        memcpy(&function, &init, sizeof(function));
    else if (strcmp(name, "cuDriverGetVersion") == 0)
        memcpy(&function, &version, sizeof(function));
    else if (strncmp(name, "cuGetProcAddress", strlen("cuGetProcAddress")) == 0)
        memcpy(&function, &address, sizeof(function));
    else if (strcmp(name, "cuGetExportTable") == 0)
        memcpy(&function, &table, sizeof(function));
    else
        memcpy(&function, &other, sizeof(function));
    return function;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                             int *status)
{
    *function = find(name);
    if (status)
        *status = 0;
    return SUCCESS;
}

CUresult cuGetExportTable(const void **table, const void *id)
{
    return NOT_SUPPORTED;
}
