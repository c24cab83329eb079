/*
 * Happy path: the line "0::/a/b" of /proc/self/cgroup names the cgroup, and a line of /proc/self/mountinfo with the type
 * cgroup2 names the place: its fourth field is the part of the hierarchy that is mounted, its fifth the mount point. That
 * is /sys/fs/cgroup, or beside the hierarchies of v1 another folder ("unified").
 *
 * Why not simply /sys/fs/cgroup: in a container the mounted part may be the container's own, or, when the host's folder
 * is passed in, lie outside the cgroup namespace. Its root is written as "/.." then, which is no beginning of any name:
 * a guess would move workers out of the container's limits.
 *
 * The table is long and the kernel composes it anew for each reader, so it is not read in the ordinary case: this process is
 * in the initial cgroup namespace, and a usual mount point holds the whole hierarchy.
 *
 * Without /proc the usual mount points are searched for the folder that lists this process.
 */

#include "launcher/host/own_cgroup_os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "launcher/util/read_file_os.h"
#include "base/cleanup.h"
#include "base/err.h"

#ifndef CGROUP2_SUPER_MAGIC
#define CGROUP2_SUPER_MAGIC 0x63677270
#endif

enum {
    TEXT_SIZE = 4096,
    PATH_SIZE = 2 * TEXT_SIZE,
    DEPTH_MAX = 16,
    FOLDERS_MAX = 4096, /* looked into without /proc */
    ROOT_INODE = 1,     /* of the whole hierarchy */
};
static const ino_t INITIAL_NAMESPACE = 0xEFFFFFFB; /* PROC_CGROUP_INIT_INO of the kernel */

/* ---- with /proc ---- */

/* The name on the line of v2. */
static bool read_name(const char *root, char out[TEXT_SIZE])
{
    char text[TEXT_SIZE];

    if (!read_file_text(text, sizeof(text), "%s/proc/self/cgroup", root))
        return false;
    const char *line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");
    if (!line)
        return false;
    line = strchr(line, '/');
    (void)snprintf(out, TEXT_SIZE, "%.*s", (int)strcspn(line, "\n"), line);
    return strncmp(out, "/..", 3) != 0; /* outside the cgroup namespace */
}

/* In mountinfo a space, tab, newline or backslash of a path is written as three octal digits. */
static void unescape(char *path)
{
    char *out = path;

    for (const char *in = path; *in; in++) {
        bool is_octal = in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] && in[3];

        *out++ = is_octal ? (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0')) : *in;
        in += is_octal ? 3 : 0;
    }
    *out = '\0';
}

/* What follows the folder `part` in name: "" or "/...". NULL: name is not below it. */
static const char *name_below(const char *name, const char *part)
{
    size_t n = strcmp(part, "/") == 0 ? 0 : strlen(part);

    if (strncmp(name, part, n) != 0 || (name[n] != '/' && name[n] != '\0'))
        return NULL;
    return strcmp(name + n, "/") == 0 ? "" : name + n;
}

/* One line of mountinfo. True, with the path, when it mounts the cgroup of this name. */
static bool take_mount(char *line, const char *name, const char *root, char *out, size_t out_size)
{
    char part[TEXT_SIZE], mount[TEXT_SIZE];
    const char *type = strstr(line, " - ");

    if (!type || strncmp(type, " - cgroup2 ", strlen(" - cgroup2 ")) != 0 ||
        sscanf(line, "%*s %*s %*s %4095s %4095s", part, mount) != 2)
        return false;
    unescape(part);
    unescape(mount);
    const char *rest = name_below(name, part);
    if (!rest)
        return false;
    int n = snprintf(out, out_size, "%s%s%s", root, mount, rest);
    return n > 0 && (size_t)n < out_size && access(out, F_OK) == 0;
}

int own_cgroup_path(const char *root, char *out, size_t out_size)
{
    char name[TEXT_SIZE], path[PATH_SIZE];
    _cleanup_free_ char *line = NULL;
    size_t capacity = 0;
    bool is_found = false;

    if (!read_name(root, name))
        return -ENOENT;
    (void)snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
    FILE *mounts = fopen(path, "re");
    if (!mounts)
        return -ENOENT;
    while (!is_found && getline(&line, &capacity, mounts) > 0)
        is_found = take_mount(line, name, root, out, out_size);
    (void)fclose(mounts); /* only read from */
    return is_found ? 0 : -ENOENT;
}

/* ---- without /proc ---- */

static bool lists_this_process(const char *folder)
{
    char path[PATH_SIZE + sizeof("/cgroup.procs")];
    bool is_listed = false;
    int pid;

    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", folder);
    FILE *processes = fopen(path, "re");
    if (!processes)
        return false;
    while (!is_listed && fscanf(processes, "%d", &pid) == 1)
        is_listed = pid == getpid();
    (void)fclose(processes); /* only read from */
    return is_listed;
}

/* path holds a folder; true: it was extended to the one that lists this process. */
static bool search_below(char path[PATH_SIZE], int depth, int *n_left)
{
    size_t n = strlen(path);
    const struct dirent *entry;
    bool is_found = false;

    if (lists_this_process(path))
        return true;
    DIR *folder = depth < DEPTH_MAX ? opendir(path) : NULL;
    while (folder && !is_found && *n_left > 0 && (entry = readdir(folder))) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.' || n + strlen(entry->d_name) + 2 > PATH_SIZE)
            continue;
        --*n_left;
        (void)snprintf(path + n, PATH_SIZE - n, "/%s", entry->d_name);
        is_found = search_below(path, depth + 1, n_left);
    }
    if (folder)
        (void)closedir(folder); /* only read from */
    if (!is_found)
        path[n] = '\0';
    return is_found;
}

int own_cgroup_search(const char *mount, char *out, size_t out_size)
{
    char path[PATH_SIZE];
    int n_left = FOLDERS_MAX;

    (void)snprintf(path, sizeof(path), "%s", mount);
    if (!search_below(path, 0, &n_left) || strlen(path) >= out_size)
        return -ENOENT;
    (void)strcpy(out, path);
    return 0;
}

/* ---- both ---- */

static const char *const usual_mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};

static bool is_cgroup2(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

/* NULL: there is none. ret_inode: of its root. */
static const char *find_usual_mount(ino_t *ret_inode)
{
    struct stat s;

    for (size_t i = 0; i < ARRAY_SIZE(usual_mounts); i++) {
        _cleanup_close_ int fd = open(usual_mounts[i], O_PATH | O_DIRECTORY | O_CLOEXEC);

        if (fd >= 0 && is_cgroup2(fd) && fstat(fd, &s) == 0) {
            *ret_inode = s.st_ino;
            return usual_mounts[i];
        }
    }
    return NULL;
}

static bool is_initial_namespace(void)
{
    struct stat s;

    return stat("/proc/self/ns/cgroup", &s) == 0 && s.st_ino == INITIAL_NAMESPACE;
}

static int find_path(char *out, size_t out_size)
{
    char name[TEXT_SIZE];
    ino_t inode = 0;
    const char *mount = find_usual_mount(&inode);

    if (access("/proc/self", F_OK) < 0)
        return mount ? own_cgroup_search(mount, out, out_size) : -ENOENT;
    if (!mount || inode != ROOT_INODE || !is_initial_namespace())
        return own_cgroup_path("", out, out_size);
    if (!read_name("", name))
        return -ENOENT;
    int n = snprintf(out, out_size, "%s%s", mount, name);
    return n > 0 && (size_t)n < out_size ? 0 : -ENOENT;
}

int own_cgroup_open(void)
{
    char path[PATH_SIZE];

    TRY(find_path(path, sizeof(path)));
    _cleanup_close_ int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (!is_cgroup2(fd))
        return -ENOENT;
    if (faccessat(fd, ".", W_OK, AT_EACCESS) < 0 || faccessat(fd, "cgroup.procs", W_OK, AT_EACCESS) < 0)
        return -errno;
    return steal_fd(&fd);
}
