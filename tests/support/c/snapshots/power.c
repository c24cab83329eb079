/*
 * Power cuts during saves. The writer runs once with its calls written down; then, for every moment between two of
 * them, every state is made that a disk may show after a power cut at that moment: what was synced is there, of
 * what was not any part may be missing. In each of them a valid snapshot has to load that is not older than the
 * last one reported durable.
 *
 *     snapshot-power [SAVES [without-file-sync | without-folder-sync]]
 *
 * The second argument leaves out what the writer syncs, to see that this is found. Exits with 1 when a promise is
 * broken.
 *
 * What a disk may show: a file's content is certain once the file was synced, else any piece of it may be missing
 * (zeros), or its end; a name (create, rename, remove) is certain once the folder was synced, else each of the
 * changes since then may be missing by itself.
 */

#include "tests/support/c/snapshots/content.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    KEEP = 2,
    PIECE = 2048,
    FILES_MAX = 256,
    ENTRIES_MAX = 4096,
    NAMES_MAX = 16,
    CHANGES_MAX = 10,
    FDS_MAX = 64
};

enum kind { MADE, WROTE, SYNCED_FILE, SYNCED_FOLDER, RENAMED, REMOVED, REPORTED };

/* One line of what the writer did. */
struct entry {
    enum kind kind;
    int file;                        /* made, wrote, synced */
    size_t begin, end;               /* wrote */
    char name[SNAPSHOT_NAME_SIZE];   /* made, removed; renamed: the old one */
    char name_2[SNAPSHOT_NAME_SIZE]; /* renamed: the new one */
    uint64_t step;                   /* reported */
};

struct file {
    uint8_t *bytes;
    size_t n_bytes;
};

static struct entry entries[ENTRIES_MAX];
static struct file files[FILES_MAX];
static int n_entries, n_files, file_of_fd[FDS_MAX];
static char folder[256], cut_folder[256];
static bool without_file_sync, without_folder_sync;

static void remove_folders(void)
{
    folder_empty(folder);
    folder_empty(cut_folder);
    rmdir(folder);
    rmdir(cut_folder);
}

static void fail(const char *doing)
{
    fprintf(stderr, "snapshot-power: %s: %s\n", doing, strerror(errno));
    exit(2);
}

/* ------------------------------------------------------------------ the calls, written down */

static struct entry *note(enum kind kind)
{
    if (n_entries == ENTRIES_MAX || n_files == FILES_MAX) {
        fprintf(stderr, "snapshot-power: more calls than there is room for\n");
        exit(2);
    }
    entries[n_entries] = (struct entry){.kind = kind};
    return &entries[n_entries++];
}

static int noted_create(void *data, int folder_fd, const char *name)
{
    int fd = snapshot_io_system.create(NULL, folder_fd, name);
    struct entry *e;

    if (fd < 0 || fd >= FDS_MAX)
        fail("create");
    e = note(MADE);
    e->file = file_of_fd[fd] = n_files++;
    (void)snprintf(e->name, sizeof(e->name), "%s", name);
    return fd;
}

static ssize_t noted_write(void *data, int fd, const void *bytes, size_t n_bytes)
{
    struct file *f = &files[file_of_fd[fd]];
    size_t n = n_bytes < PIECE ? n_bytes : PIECE;
    struct entry *e = note(WROTE);

    if (snapshot_io_system.write(NULL, fd, bytes, n) != (ssize_t)n)
        fail("write");
    f->bytes = realloc(f->bytes, f->n_bytes + n);
    memcpy(f->bytes + f->n_bytes, bytes, n);
    e->file = file_of_fd[fd];
    e->begin = f->n_bytes;
    e->end = f->n_bytes += n;
    return (ssize_t)n;
}

static int noted_sync(void *data, int fd)
{
    struct stat st;
    struct entry *e;

    if (fstat(fd, &st) < 0)
        fail("fstat");
    if (S_ISDIR(st.st_mode) ? without_folder_sync : without_file_sync)
        return 0;
    e = note(S_ISDIR(st.st_mode) ? SYNCED_FOLDER : SYNCED_FILE);
    e->file = S_ISDIR(st.st_mode) ? -1 : file_of_fd[fd];
    return 0;
}

static int noted_rename(void *data, int folder_fd, const char *from, const char *to)
{
    struct entry *e = note(RENAMED);

    (void)snprintf(e->name, sizeof(e->name), "%s", from);
    (void)snprintf(e->name_2, sizeof(e->name_2), "%s", to);
    return snapshot_io_system.rename(NULL, folder_fd, from, to);
}

static int noted_remove(void *data, int folder_fd, const char *name)
{
    (void)snprintf(note(REMOVED)->name, SNAPSHOT_NAME_SIZE, "%s", name);
    return snapshot_io_system.remove(NULL, folder_fd, name);
}

static void write_down(int n_saves)
{
    struct snapshot_io io = snapshot_io_system;
    struct crw_snapshots *s;
    const char *failure;

    io.create = noted_create;
    io.write = noted_write;
    io.sync = noted_sync;
    io.rename = noted_rename;
    io.remove = noted_remove;
    if (snapshots_create(folder, KEEP, &io, &s) != 0)
        fail(crw_error_message());
    for (int step = 1; step <= n_saves; step++) {
        if (content_save(s, (uint64_t)step) != 0)
            fail(crw_error_message());
        crw_snapshots_wait(s);
        note(REPORTED)->step = crw_snapshots_status(s, &failure);
        if (failure || entries[n_entries - 1].step != (uint64_t)step)
            fail(failure ? failure : "a step is not durable");
    }
    crw_snapshots_destroy(s);
}

/* ------------------------------------------------------------------ the disk after a cut */

struct store_entry {
    char name[SNAPSHOT_NAME_SIZE];
    int file; /* -1: not there */
};

struct disk {
    struct store_entry names[NAMES_MAX];
    int n_names;
};

static struct store_entry *find_name(struct disk *d, const char *name)
{
    for (int i = 0; i < d->n_names; i++)
        if (strcmp(d->names[i].name, name) == 0)
            return &d->names[i];
    for (int i = 0; i < d->n_names; i++)
        if (d->names[i].file < 0) {
            (void)snprintf(d->names[i].name, SNAPSHOT_NAME_SIZE, "%s", name);
            return &d->names[i];
        }
    if (d->n_names == NAMES_MAX) {
        fprintf(stderr, "snapshot-power: more names than there is room for\n");
        exit(2);
    }
    d->names[d->n_names] = (struct store_entry){.file = -1};
    (void)snprintf(d->names[d->n_names].name, SNAPSHOT_NAME_SIZE, "%s", name);
    return &d->names[d->n_names++];
}

/* What a name stood for when the call was made, whether or not an earlier change of names has got lost. */
static int file_behind(const char *name, int before)
{
    for (int i = before - 1; i >= 0; i--) {
        if (entries[i].kind == MADE && strcmp(entries[i].name, name) == 0)
            return entries[i].file;
        if (entries[i].kind == RENAMED && strcmp(entries[i].name_2, name) == 0)
            return file_behind(entries[i].name, i);
    }
    return -1;
}

static void change_names(struct disk *d, int i)
{
    const struct entry *e = &entries[i];
    int file = e->kind == RENAMED ? file_behind(e->name, i) : e->file;

    if (e->kind == MADE)
        find_name(d, e->name)->file = file;
    if (e->kind == RENAMED || e->kind == REMOVED)
        find_name(d, e->name)->file = -1;
    if (e->kind == RENAMED)
        find_name(d, e->name_2)->file = file;
}

static bool changes_names(const struct entry *e)
{
    return e->kind == MADE || e->kind == RENAMED || e->kind == REMOVED;
}

enum loss { LOST_NOTHING, LOST_ALL, LOST_END, LOST_ODD_PIECES, LOST_EVEN_PIECES, LOST_AND_SHORT, N_LOSSES };

/* How much of a file was synced by then. */
static size_t synced_bytes(int file, int cut)
{
    size_t written = 0, synced = 0;

    for (int i = 0; i < cut; i++) {
        if (entries[i].kind == WROTE && entries[i].file == file)
            written = entries[i].end;
        if (entries[i].kind == SYNCED_FILE && entries[i].file == file)
            synced = written;
    }
    return synced;
}

static size_t written_bytes(int file, int cut)
{
    size_t written = 0;

    for (int i = 0; i < cut; i++)
        if (entries[i].kind == WROTE && entries[i].file == file)
            written = entries[i].end;
    return written;
}

/* Its content with what the loss took from it. */
static void write_file(const struct store_entry *n, int cut, enum loss loss)
{
    size_t synced = synced_bytes(n->file, cut), written = written_bytes(n->file, cut), size = written;
    uint8_t *bytes = calloc(1, written + 1);
    int fd = open(content_path(cut_folder, n->name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    if (fd < 0 || !bytes)
        fail("a file after the cut");
    if (written > 0)
        memcpy(bytes, files[n->file].bytes, written);
    for (size_t at = synced; at < written; at += PIECE) {
        size_t length = written - at < PIECE ? written - at : PIECE;
        bool odd = at / PIECE % 2;

        if (loss == LOST_ALL || (loss == LOST_ODD_PIECES && odd) || (loss == LOST_EVEN_PIECES && !odd))
            memset(bytes + at, 0, length);
    }
    if (synced < written && loss == LOST_END)
        size = synced + (written - synced) / 2;
    if (synced < written && loss == LOST_AND_SHORT)
        size = synced;
    if (write(fd, bytes, size) != (ssize_t)size)
        fail("a file after the cut");
    close(fd);
    free(bytes);
}

static uint64_t reported_before(int cut)
{
    uint64_t step = 0;

    for (int i = 0; i < cut; i++)
        if (entries[i].kind == REPORTED)
            step = entries[i].step;
    return step;
}

/* The state after a cut before entry `cut`: of the changes of names since the last sync of the folder those in
 * the mask have got lost. */
static void look(int cut, const int *changes, int n_changes, unsigned mask, enum loss loss)
{
    struct disk d = {0};
    char why[CONTENT_WHY_MAX];
    uint64_t step;
    int first = n_changes > 0 ? changes[0] : cut;

    for (int i = 0; i < first; i++)
        if (changes_names(&entries[i]))
            change_names(&d, i);
    for (int i = 0; i < n_changes; i++)
        if (!(mask >> i & 1))
            change_names(&d, changes[i]);
    folder_empty(cut_folder);
    for (int i = 0; i < d.n_names; i++)
        if (d.names[i].file >= 0)
            write_file(&d.names[i], cut, loss);
    if (content_load_newest(cut_folder, &step, NULL, why) == 0 && step >= reported_before(cut))
        return;
    fprintf(stderr,
            "snapshot-power: cut before call %d, lost names %x, loss %d: step %llu was durable, %llu loads\n",
            cut, mask, (int)loss, (unsigned long long)reported_before(cut), (unsigned long long)step);
    exit(1);
}

static long cut_at(int cut)
{
    int changes[CHANGES_MAX], n_changes = 0;
    long n = 0;

    for (int i = 0; i < cut; i++) {
        if (entries[i].kind == SYNCED_FOLDER)
            n_changes = 0;
        if (!changes_names(&entries[i]))
            continue;
        if (n_changes == CHANGES_MAX) {
            fprintf(stderr, "snapshot-power: more changes between two syncs than there is room for\n");
            exit(2);
        }
        changes[n_changes++] = i;
    }
    for (unsigned mask = 0; mask < 1u << n_changes; mask++)
        for (int loss = 0; loss < N_LOSSES; loss++, n++)
            look(cut, changes, n_changes, mask, (enum loss)loss);
    return n;
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    int n_saves = argc > 1 ? atoi(argv[1]) : 5;
    long n = 0;

    (void)setenv("CRUN_INSTANCE", "run", 1); /* the fence is written as well */
    (void)snprintf(folder, sizeof(folder), "%s/snapshot-power-XXXXXX", tmp ? tmp : "/tmp");
    (void)snprintf(cut_folder, sizeof(cut_folder), "%s/snapshot-power-XXXXXX", tmp ? tmp : "/tmp");
    if (n_saves < 1 || !mkdtemp(folder) || !mkdtemp(cut_folder))
        fail("a folder for the snapshots");
    atexit(remove_folders);
    without_file_sync = argc > 2 && strcmp(argv[2], "without-file-sync") == 0;
    without_folder_sync = argc > 2 && strcmp(argv[2], "without-folder-sync") == 0;
    write_down(n_saves);
    for (int cut = 0; cut <= n_entries; cut++)
        n += cut_at(cut);
    printf(
        "%d saves, %d calls: %ld disks after a power cut, a valid snapshot on each, none older than the last "
        "durable one\n",
        n_saves, n_entries, n);
    return 0;
}
