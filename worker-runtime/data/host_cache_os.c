/*
 * A head of one page group, then the items, each on whole pages. Two kinds of locks on bytes of the file:
 *   byte 0       the table: locked by a process that adds an item or reserves room. Held for an instant.
 *   byte 1 + n   item n: locked by the process that makes it, for as long as that takes.
 * They are locks of an open file, which a dead process cannot hold; so each rank opens the file anew: the
 * descriptor that it inherited is one and the same for all.
 *
 * Ways it fails: the rank that makes an item is killed; the lock falls to the next, which finds the item
 * not ready and makes it, in the room that is reserved already. Bytes of another version or of unknown
 * origin: the magic is wrong, there is no cache. The rank that makes an item hangs: the others stop
 * waiting and make their own.
 */

#include "worker-runtime/data/host_cache_os.h"

#include "base/cleanup.h"
#include "proto/worker_memory.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/file_limit_os.h"
#include "worker-runtime/base/stop_os.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x3130686361637263ull

enum {
    N_ITEMS = 64,
    HEAD_SIZE = 16384,
    PAGE = 4096,
    WAIT_PAUSE_MS = 2,
    MEMORY_SHARE = 4, /* of the machine's memory, one part in so many */
};

/* A file as it was: another one of that name, or a change to it, is another key. */
struct key {
    uint64_t device, inode, size;
    int64_t modified_s, modified_ns, changed_s, changed_ns;
};

struct cache_entry {
    struct key key;
    uint64_t at, n_bytes; /* 0: nothing reserved */
    _Atomic uint32_t ready;
};

struct host_cache_head {
    _Atomic uint64_t magic;
    uint64_t end; /* of what is reserved */
    uint32_t n_entries;
    struct cache_entry entries[N_ITEMS];
};

static_assert(sizeof(struct host_cache_head) <= HEAD_SIZE, "the head fits in front of the items");

static struct key item_key(const struct stat *st)
{
    return (struct key){
        .device = st->st_dev,
        .inode = st->st_ino,
        .size = (uint64_t)st->st_size,
        .modified_s = st->st_mtim.tv_sec,
        .modified_ns = st->st_mtim.tv_nsec,
        .changed_s = st->st_ctim.tv_sec,
        .changed_ns = st->st_ctim.tv_nsec,
    };
}

/* ---- locks ---- */

int host_cache_wait_ms = 60 * 1000;

/* n_bytes 0: to the end of all files. */
static bool set_lock(int fd, short type, off_t byte, off_t n_bytes)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = n_bytes};
    int r;

    do
        r = fcntl(fd, F_OFD_SETLKW, &lock);
    while (r < 0 && errno == EINTR);
    return r == 0;
}

static bool lock_table(int fd)
{
    return set_lock(fd, F_WRLCK, 0, 1);
}

static void unlock_table(int fd)
{
    (void)set_lock(fd, F_UNLCK, 0, 1); /* our own: cannot fail */
}

static bool try_lock_item(int fd, int number)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + number, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

/* Waits for the process that makes the item, but not for one that hangs, and not past a request to stop:
 * false, and this process makes its own. */
static bool lock_item(int fd, int number)
{
    const struct timespec pause = {.tv_nsec = WAIT_PAUSE_MS * 1000000L};

    for (int waited_ms = 0; !try_lock_item(fd, number); waited_ms += WAIT_PAUSE_MS) {
        if (waited_ms >= host_cache_wait_ms || stop_requested())
            return false;
        (void)nanosleep(&pause, NULL);
    }
    return true;
}

/* ---- the table ---- */

static int open_cache_file(void)
{
    int inherited = env_inherited_fd(WORKER_MEMORY_CACHE_ENVIRONMENT);
    char path[48];
    struct stat st;

    if (inherited < 0 || fstat(inherited, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 0)
        return -1;                               /* not what crun lends: a number left over from a parent */
    (void)fcntl(inherited, F_SETFD, FD_CLOEXEC); /* what this process starts has no use for it */
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", inherited);
    return open(path, O_RDWR | O_CLOEXEC);
}

static struct host_cache_head *map_head(int fd)
{
    struct host_cache_head *head = MAP_FAILED;
    struct stat st;

    if (!lock_table(fd))
        return NULL;
    if (fstat(fd, &st) == 0 && (st.st_size >= HEAD_SIZE || file_limit_allocate(fd, 0, HEAD_SIZE) == 0))
        head = mmap(NULL, HEAD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (head != MAP_FAILED && head->magic == 0) {
        head->end = HEAD_SIZE;
        head->magic = MAGIC;
    }
    if (head != MAP_FAILED && head->magic != MAGIC) {
        (void)munmap(head, HEAD_SIZE); /* our own mapping: cannot fail */
        head = MAP_FAILED;
    }
    unlock_table(fd);
    return head == MAP_FAILED ? NULL : head;
}

/* -1: no room. */
static int find_or_add(struct host_cache_head *head, const struct key *key)
{
    int n = (int)head->n_entries;

    for (int i = 0; i < n && i < N_ITEMS; i++)
        if (memcmp(&head->entries[i].key, key, sizeof(*key)) == 0)
            return i;
    if (n >= N_ITEMS)
        return -1;
    head->entries[n].key = *key;
    head->n_entries++;
    return n;
}

static uint8_t *map_item(const struct host_cache_item *item, int protection)
{
    const struct cache_entry *e = &item->head->entries[item->number];
    void *data = mmap(NULL, e->n_bytes, protection, MAP_SHARED, item->fd, (off_t)e->at);

    return data == MAP_FAILED ? NULL : data;
}

static void leave(struct host_cache_item *item)
{
    if (item->head)
        (void)munmap(item->head, HEAD_SIZE); /* our own mapping: cannot fail */
    if (item->fd >= 0) {
        /* Closing alone would not do: the mapping of an item keeps the open file, and its locks. */
        (void)set_lock(item->fd, F_UNLCK, 0, 0); /* cannot fail */
        (void)close(item->fd);                   /* memory: nothing is pending */
    }
    *item = (struct host_cache_item){.state = HOST_CACHE_NONE, .fd = -1};
}

static bool find_item(struct host_cache_item *item, const struct stat *of)
{
    const struct key key = item_key(of);

    item->fd = open_cache_file();
    if (item->fd < 0)
        return false;
    item->head = map_head(item->fd);
    if (!item->head || !lock_table(item->fd))
        return false;
    item->number = find_or_add(item->head, &key);
    unlock_table(item->fd);
    return item->number >= 0;
}

void host_cache_open(const struct stat *of, struct host_cache_item *ret)
{
    struct host_cache_item item = {.fd = -1};
    struct cache_entry *e;

    *ret = item;
    if (!find_item(&item, of)) {
        leave(&item);
        return;
    }
    e = &item.head->entries[item.number];
    /* Ready for good needs no lock. */
    if (!atomic_load_explicit(&e->ready, memory_order_acquire) && !lock_item(item.fd, item.number)) {
        leave(&item);
        return;
    }
    item.state = HOST_CACHE_CLAIMED;
    if (atomic_load_explicit(&e->ready, memory_order_acquire)) {
        item.n_bytes = e->n_bytes;
        item.data = map_item(&item, PROT_READ);
        item.state = HOST_CACHE_READY;
    }
    if (item.state == HOST_CACHE_READY && !item.data)
        leave(&item);
    *ret = item;
}

/* ---- making one ---- */

static uint64_t memory_share(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / MEMORY_SHARE : 0;
}

/* fallocate(): a lack of memory is an error now, not a SIGBUS later. */
static bool reserve(struct host_cache_item *item, struct cache_entry *e, size_t n_bytes)
{
    uint64_t room = (n_bytes + PAGE - 1) / PAGE * PAGE, at = item->head->end, max = memory_share();

    if (e->n_bytes == n_bytes)
        return true; /* by one that has died over it */
    if (n_bytes == 0 || n_bytes > max || at > max - room || file_limit_allocate(item->fd, at, room) < 0)
        return false;
    item->head->end = at + room;
    e->at = at;
    e->n_bytes = n_bytes;
    return true;
}

uint8_t *host_cache_reserve(struct host_cache_item *item, size_t n_bytes)
{
    bool has_room;

    if (item->state != HOST_CACHE_CLAIMED || !lock_table(item->fd))
        return NULL;
    has_room = reserve(item, &item->head->entries[item->number], n_bytes);
    unlock_table(item->fd);
    if (has_room)
        item->data = map_item(item, PROT_READ | PROT_WRITE);
    item->n_bytes = n_bytes;
    return item->data;
}

void host_cache_close(struct host_cache_item *item, bool complete, uint8_t **ret_data, size_t *ret_n_bytes)
{
    bool keep = item->data && (complete || item->state == HOST_CACHE_READY);

    if (keep && item->state == HOST_CACHE_CLAIMED) {
        atomic_store_explicit(&item->head->entries[item->number].ready, 1, memory_order_release);
        (void)mprotect(item->data, item->n_bytes,
                       PROT_READ); /* from now on all processes of the host read it */
    }
    if (!keep)
        host_cache_unmap(item->data, item->n_bytes);
    *ret_data = keep ? item->data : NULL;
    *ret_n_bytes = keep ? item->n_bytes : 0;
    leave(item);
}

void host_cache_unmap(uint8_t *data, size_t n_bytes)
{
    if (data)
        (void)munmap(data, n_bytes); /* our own mapping: cannot fail */
}
