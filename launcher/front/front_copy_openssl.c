#include "launcher/front/front_copy_openssl.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "launcher/util/envp.h"
#include "proto/openssl_os.h"

static const char *const machines[] = {"x86_64", "aarch64", "riscv64", "ppc64le", "s390x"};

_Static_assert(ARRAY_SIZE(machines) < FRONT_COPIES_MAX, "and the machine type of this host");

static bool read_whole(int fd, uint8_t *to, size_t n)
{
    for (ssize_t got; n > 0; to += got, n -= (size_t)got) {
        got = read(fd, to, n);
        if (got <= 0)
            return false;
    }
    return true;
}

/* Malloc'ed, or NULL. */
static uint8_t *read_build(const char *path, size_t *ret_size)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;

    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || info.st_size <= 0 ||
        info.st_size > FRONT_COPY_SIZE_MAX)
        return NULL;
    *ret_size = (size_t)info.st_size;
    _cleanup_free_ uint8_t *bytes = malloc(*ret_size);
    return bytes && read_whole(fd, bytes, *ret_size) ? steal_ptr(bytes) : NULL;
}

static bool put_hash(const struct openssl *o, const uint8_t *bytes, size_t n, char ret[65])
{
    uint8_t hash[64];
    unsigned size = 0;

    if (o->EVP_Digest(bytes, n, hash, &size, o->EVP_sha256(), NULL) != 1 || size != 32)
        return false;
    for (unsigned i = 0; i < size; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", hash[i]); /* fits */
    return true;
}

static bool add_build(struct front_copies *c, const struct openssl *o, const char *machine, const char *path)
{
    size_t i = c->n, size = 0;
    _cleanup_free_ uint8_t *bytes = read_build(path, &size);

    if (!bytes || !put_hash(o, bytes, size, c->hashes[i]))
        return false;
    (void)snprintf(c->machines[i], sizeof(c->machines[i]), "%s", machine); /* cut: no host has that type */
    c->builds[i] = (struct bootstrap_build){.machine = c->machines[i], .hash = c->hashes[i]};
    c->bytes[i] = steal_ptr(bytes);
    c->sizes[i] = size;
    c->n++;
    return true;
}

static void find_folder(char *const *environment, char ret[PATH_MAX])
{
    const char *given = envp_get(environment, "CRUN_PORTABLE_DIR");
    ssize_t n = given && *given ? -1 : readlink("/proc/self/exe", ret, PATH_MAX - 32);

    ret[n > 0 ? n : 0] = 0;
    char *slash = strrchr(ret, '/');
    (void)snprintf(slash ? slash : ret, 32,
                   "/../lib/crun/portable"); /* fits behind the path of the program */
    if (given && *given)
        (void)snprintf(ret, PATH_MAX, "%s", given);
}

int front_copies_load(struct front_copies *c, char *const *environment, const char **ret_why)
{
    const struct openssl *o = openssl_get(ret_why);
    char folder[PATH_MAX], path[PATH_MAX + 64];
    struct utsname own;
    bool has_own = uname(&own) < 0;

    *c = (struct front_copies){0};
    if (!o)
        return -ENOSYS;
    find_folder(environment, folder);
    for (size_t i = 0; i < ARRAY_SIZE(machines); i++) {
        (void)snprintf(path, sizeof(path), "%s/crun-%s", folder, machines[i]); /* fits */
        if (add_build(c, o, machines[i], path))
            has_own = has_own || strcmp(machines[i], own.machine) == 0;
    }
    if (!has_own)
        (void)add_build(c, o, own.machine, "/proc/self/exe");
    return 0;
}

uint8_t *front_copies_find(const struct front_copies *c, const char *hash, size_t *ret_size)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->hashes[i], hash) == 0) {
            *ret_size = c->sizes[i];
            return c->bytes[i];
        }
    *ret_size = 0;
    return NULL;
}

void front_copies_finish(struct front_copies *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->bytes[i]);
    *c = (struct front_copies){0};
}
