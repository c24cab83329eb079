#include "tests/support/c/synced_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/siphash.h"

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);

enum { FILES_MAX = 64, SIZE_LARGEST = 64 * 1024 };

atomic_bool synced_files_hang;
atomic_int synced_files_file_error, synced_files_folder_error;
atomic_uint synced_files_n_tmp;

struct content {
    ino_t inode;
    uint64_t hash;
};

struct entry {
    char name[NAME_MAX + 1];
    ino_t inode;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char watched[PATH_MAX];
static struct content contents[FILES_MAX]; /* at the last fsync() of each file */
static struct entry entries[FILES_MAX];    /* at the last one of the folder */
static size_t n_contents, n_entries;
static char renamed_early[NAME_MAX + 1], in_place[NAME_MAX + 1];

static uint64_t hash_of(int fd)
{
    static const uint8_t seed[SIPHASH_SEED_SIZE];
    static uint8_t bytes[SIZE_LARGEST]; /* the lock is held */
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC); /* fd may be for writing only */
    ssize_t n = own >= 0 ? read(own, bytes, sizeof(bytes)) : 0;

    if (own >= 0)
        (void)close(own);
    return siphash13(seed, bytes, n > 0 ? (size_t)n : 0);
}

static struct content *find_content(ino_t inode)
{
    for (size_t i = 0; i < n_contents; i++)
        if (contents[i].inode == inode)
            return &contents[i];
    return NULL;
}

static void note_content(int fd, ino_t inode)
{
    struct content *c = find_content(inode);

    uint64_t hash = hash_of(fd);

    for (size_t i = 0; i < n_entries && c && c->hash != hash; i++)
        if (entries[i].inode == inode)
            (void)snprintf(in_place, sizeof(in_place), "%.255s", entries[i].name);
    if (!c && n_contents < FILES_MAX)
        c = &contents[n_contents++];
    if (c)
        *c = (struct content){.inode = inode, .hash = hash};
}

/* Fills ret[] with what the folder holds now; how many. */
static size_t list_folder(struct entry *ret)
{
    DIR *list = opendir(watched);
    struct dirent *e;
    size_t n = 0;

    while (list && n < FILES_MAX && (e = readdir(list)))
        if (e->d_name[0] != '.') {
            (void)snprintf(ret[n].name, sizeof(ret[n].name), "%s", e->d_name);
            ret[n++].inode = e->d_ino;
        }
    if (list)
        (void)closedir(list);
    return n;
}

static bool is_watched(int folder)
{
    struct stat a, b;

    return watched[0] && fstat(folder, &a) == 0 && stat(watched, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static void note_sync(int fd, const struct stat *s)
{
    struct stat tmp;

    (void)pthread_mutex_lock(&lock);
    if (S_ISREG(s->st_mode))
        note_content(fd, s->st_ino);
    else if (is_watched(fd))
        n_entries = list_folder(entries);
    else if (stat("/tmp", &tmp) == 0 && tmp.st_ino == s->st_ino && tmp.st_dev == s->st_dev)
        synced_files_n_tmp++;
    (void)pthread_mutex_unlock(&lock);
}

int __wrap_fsync(int fd)
{
    struct stat s;

    while (synced_files_hang)
        (void)poll(NULL, 0, 1);
    if (fstat(fd, &s) < 0)
        return -1;
    int error = S_ISREG(s.st_mode) ? synced_files_file_error : synced_files_folder_error;
    if (error) {
        errno = error;
        return -1;
    }
    note_sync(fd, &s);
    return __real_fsync(fd);
}

static bool is_content_synced(int folder, const char *name)
{
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    struct stat s;
    bool ok = true;

    if (fd >= 0 && fstat(fd, &s) == 0) {
        struct content *c = find_content(s.st_ino);

        ok = c && c->hash == hash_of(fd);
    }
    if (fd >= 0)
        (void)close(fd);
    return ok;
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    (void)pthread_mutex_lock(&lock);
    if (is_watched(from_folder) && !is_content_synced(from_folder, from))
        (void)snprintf(renamed_early, sizeof(renamed_early), "%s", from);
    (void)pthread_mutex_unlock(&lock);
    return __real_renameat(from_folder, from, to_folder, to);
}

void synced_files_watch(const char *folder)
{
    (void)pthread_mutex_lock(&lock);
    (void)snprintf(watched, sizeof(watched), "%s", folder);
    n_contents = 0;
    renamed_early[0] = in_place[0] = '\0';
    n_entries = list_folder(entries);
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < n_entries; i++) {
        int fd = openat(dir, entries[i].name, O_RDONLY | O_CLOEXEC);

        if (fd >= 0) {
            note_content(fd, entries[i].inode);
            (void)close(fd);
        }
    }
    if (dir >= 0)
        (void)close(dir);
    (void)pthread_mutex_unlock(&lock);
}

/* Whether this list has an entry of that name for that file. */
static bool has_entry(const struct entry *list, size_t n, const struct entry *wanted)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].name, wanted->name) == 0 && list[i].inode == wanted->inode)
            return true;
    return false;
}

static void compare_folder(char *ret, size_t size)
{
    static struct entry now[FILES_MAX]; /* the lock is held */
    size_t n_now = list_folder(now);
    int dir = open(watched, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (size_t i = 0; i < n_now && !ret[0]; i++)
        if (!has_entry(entries, n_entries, &now[i]))
            (void)snprintf(ret, size, "%.255s is new, and the folder was not synced", now[i].name);
        else if (!is_content_synced(dir, now[i].name))
            (void)snprintf(ret, size, "the content of %.255s was not synced", now[i].name);
    for (size_t i = 0; i < n_entries && !ret[0]; i++)
        if (!has_entry(now, n_now, &entries[i]))
            (void)snprintf(ret, size, "%.255s was removed or replaced, and the folder was not synced",
                           entries[i].name);
    if (dir >= 0)
        (void)close(dir);
}

void synced_files_compare(char ret[SYNCED_FILES_REASON_SIZE])
{
    (void)pthread_mutex_lock(&lock);
    ret[0] = '\0';
    if (renamed_early[0])
        (void)snprintf(ret, SYNCED_FILES_REASON_SIZE, "%.255s was renamed before its content was synced",
                       renamed_early);
    else if (in_place[0])
        (void)snprintf(ret, SYNCED_FILES_REASON_SIZE, "%.255s was written over where it was", in_place);
    else
        compare_folder(ret, SYNCED_FILES_REASON_SIZE);
    (void)pthread_mutex_unlock(&lock);
}
