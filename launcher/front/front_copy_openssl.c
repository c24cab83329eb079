#include "launcher/front/front_copy_openssl.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/err.h"
#include "launcher/util/envp.h"
#include "launcher/util/read_disk_os.h"
#include "proto/openssl_os.h"

static const char *const machines[] = {"x86_64", "aarch64", "riscv64", "ppc64le", "s390x"};

_Static_assert(ARRAY_SIZE(machines) < FRONT_COPIES_MAX, "and the machine type of this host");

static bool put_hash(const struct openssl *o, const struct file_part *build, char ret[65])
{
    uint8_t hash[64];
    unsigned size = 0;

    if (o->EVP_Digest(build->bytes, build->n_bytes, hash, &size, o->EVP_sha256(), NULL) != 1 || size != 32)
        return false;
    for (unsigned i = 0; i < size; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", hash[i]); /* fits */
    return true;
}

static bool add_build(struct front_copies *c, const struct openssl *o, const char *machine, const char *path)
{
    struct file_part *build = file_part_create(strdup(path), FRONT_COPY_SIZE_MAX + 1, false);
    size_t i = c->n;

    if (build)
        file_part_read(build);
    bool is_whole = build && build->n_bytes > 0 && build->n_bytes <= FRONT_COPY_SIZE_MAX;
    if (!is_whole || !put_hash(o, build, c->hashes[i])) {
        file_part_drop(build);
        return false;
    }
    (void)snprintf(c->machines[i], sizeof(c->machines[i]), "%s", machine); /* cut: no host has that type */
    c->builds[i] = (struct bootstrap_build){.machine = c->machines[i], .hash = c->hashes[i]};
    c->files[i] = build;
    c->n++;
    return true;
}

static void find_folder(char *const *environment, char ret[PATH_MAX])
{
    const char *given = envp_get(environment, "CRUN_PORTABLE_DIR");

    if (given && *given) {
        (void)snprintf(ret, PATH_MAX, "%s", given);
        return;
    }
    ssize_t n = readlink("/proc/self/exe", ret, PATH_MAX - 32);
    ret[n > 0 ? n : 0] = 0;
    char *slash = strrchr(ret, '/');
    (void)snprintf(slash ? slash : ret, 32,
                   "/../lib/crun/portable"); /* fits behind the path of the program */
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

const struct file_part *front_copies_find(const struct front_copies *c, const char *hash)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->hashes[i], hash) == 0)
            return c->files[i];
    return NULL;
}

void front_copies_finish(struct front_copies *c)
{
    for (size_t i = 0; i < c->n; i++)
        file_part_drop(c->files[i]);
    *c = (struct front_copies){0};
}
