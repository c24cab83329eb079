#include "launcher/host/munge_os.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/symbols_os.h"

/* From munge.h, whose package a build does not need. */
enum {
    OPTION_CIPHER = 0,
    OPTION_SOCKET = 8,
    OPTION_USER = 9,
    CIPHER_AES128 = 4, /* stated: a cluster's default may be none */
    MUNGE_SNAFU = 1,
    MUNGE_NO_MEMORY = 5,
    MUNGE_SOCKET = 6,
    MUNGE_TIMEOUT = 7,
};

struct munge_context;

static struct {
    struct munge_context *(*munge_ctx_create)(void);
    void (*munge_ctx_destroy)(struct munge_context *c);
    int (*munge_ctx_get)(struct munge_context *c, int option, ...);
    int (*munge_ctx_set)(struct munge_context *c, int option, ...);
    const char *(*munge_ctx_strerror)(struct munge_context *c);
    const char *(*munge_strerror)(int error);
    int (*munge_encode)(char **credential, struct munge_context *c, const void *bytes, int n);
    int (*munge_decode)(const char *credential, struct munge_context *c, void **bytes, int *n, uid_t *uid,
                        gid_t *gid);
} table;

static bool opened;

static const struct library_function functions[] = {
    {"munge_ctx_create", &table.munge_ctx_create},
    {"munge_ctx_destroy", &table.munge_ctx_destroy},
    {"munge_ctx_get", &table.munge_ctx_get},
    {"munge_ctx_set", &table.munge_ctx_set},
    {"munge_ctx_strerror", &table.munge_ctx_strerror},
    {"munge_strerror", &table.munge_strerror},
    {"munge_encode", &table.munge_encode},
    {"munge_decode", &table.munge_decode},
};

int munge_find(char why[MUNGE_ERROR_SIZE])
{
    void *library = opened ? NULL : dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);

    if (opened)
        return 0;
    opened = library && library_find(library, functions, ARRAY_SIZE(functions));
    if (opened)
        return 0;
    (void)snprintf(why, MUNGE_ERROR_SIZE, "%s",
                   library ? "libmunge.so.2 lacks a function" : "libmunge.so.2 is not installed"); /* fits */
    if (library)
        (void)dlclose(library); /* nothing of it was called */
    return -ENOSYS;
}

static struct munge_context *open_context(const char *socket)
{
    struct munge_context *c = table.munge_ctx_create();

    if (c && *socket && table.munge_ctx_set(c, OPTION_SOCKET, socket) != 0) {
        table.munge_ctx_destroy(c);
        return NULL;
    }
    return c;
}

/* Ends a call: its result as a negative errno, with its reason. */
static int close_context(struct munge_context *c, int error, char why[MUNGE_ERROR_SIZE])
{
    const char *text = c ? table.munge_ctx_strerror(c) : "out of memory";

    if (error)
        (void)snprintf(why, MUNGE_ERROR_SIZE, "%s", text ? text : table.munge_strerror(error)); /* may cut */
    if (c)
        table.munge_ctx_destroy(c);
    switch (error) {
    case 0:
        return 0;
    case MUNGE_SNAFU:
    case MUNGE_NO_MEMORY:
    case MUNGE_SOCKET:
    case MUNGE_TIMEOUT:
        return -EIO;
    default:
        return -EBADMSG;
    }
}

int munge_make(char **ret, const char *socket, const struct buf *payload, uid_t user,
               char why[MUNGE_ERROR_SIZE])
{
    struct munge_context *c = open_context(socket);
    int error = c ? 0 : MUNGE_NO_MEMORY;

    *ret = NULL;
    if (!error)
        error = table.munge_ctx_set(c, OPTION_CIPHER, CIPHER_AES128);
    if (!error)
        error = table.munge_ctx_set(c, OPTION_USER, user);
    if (!error)
        error = table.munge_encode(ret, c, buf_bytes(payload), (int)buf_size(payload));
    if (error)
        free(*ret);
    return close_context(c, error, why) ? -EIO : 0;
}

/* libmunge returns the payload of an expired or replayed credential too. */
static void drop_payload(void *bytes, int n)
{
    if (bytes && n > 0)
        explicit_bzero(bytes, (size_t)n);
    free(bytes);
}

int munge_open(struct key_exchange_payload *ret, const char *socket, const char *credential,
               char why[MUNGE_ERROR_SIZE])
{
    struct munge_context *c = open_context(socket);
    void *bytes = NULL;
    uid_t uid = (uid_t)-1;
    gid_t gid;
    int n = 0, error = MUNGE_NO_MEMORY;

    if (c)
        error = table.munge_decode(credential, c, &bytes, &n, &uid, &gid);
    if (error)
        drop_payload(bytes, n);
    else
        *ret = (struct key_exchange_payload){.bytes = bytes, .n = n > 0 ? (size_t)n : 0, .uid = uid};
    return close_context(c, error, why);
}

bool munge_is_there(const char *socket)
{
    struct munge_context *c = open_context(socket);
    const char *path = NULL;
    bool is_there = false;

    if (!c)
        return true; /* out of memory: munge_check() reports it */
    if (table.munge_ctx_get(c, OPTION_SOCKET, &path) == 0 && path)
        is_there = access(path, F_OK) == 0 || errno != ENOENT;
    table.munge_ctx_destroy(c);
    return is_there;
}

int munge_check(const char *socket, char why[MUNGE_ERROR_SIZE])
{
    _cleanup_free_ char *credential = NULL;
    struct key_exchange_payload payload;
    const struct buf nothing = {0};

    TRY(munge_make(&credential, socket, &nothing, geteuid(), why));
    TRY(munge_open(&payload, socket, credential, why));
    free((void *)(uintptr_t)payload.bytes);
    if (payload.uid == geteuid())
        return 0;
    (void)snprintf(why, MUNGE_ERROR_SIZE, "munged takes this process for user %u", (unsigned)payload.uid);
    return -EIO;
}
