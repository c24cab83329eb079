#pragma once

/*
 * Data that the ranks of a host share and that one of them has made: today, files that one rank has
 * inflated. It lies in the file that crun holds for all workers of the node (proto/worker_memory.h), so a
 * worker that replaces another one finds it ready. Only a process under crun has one; others get
 * HOST_CACHE_NONE.
 *
 *   host_cache_open()    ready: map it and be done. Claimed: this rank is the one that has to make it; the
 *                        others wait in here until it has, has given up, or has died, and then it is their turn.
 *   host_cache_reserve() memory to write it to
 *   host_cache_close()   publishes it as ready, or as not made
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

enum host_cache_state { HOST_CACHE_NONE, HOST_CACHE_READY, HOST_CACHE_CLAIMED };

struct host_cache_item {
    enum host_cache_state state;
    struct host_cache_head *head;
    int fd, number;
    uint8_t *data; /* READY: to be read only; CLAIMED: to be written */
    size_t n_bytes;
};

/* How long host_cache_open() waits for another process that makes the item; less in tests. */
extern int host_cache_wait_ms;

/* The item made from that file, as it is now. Without a cache, without room in it, and where its maker
 * hangs or this process has to stop: HOST_CACHE_NONE. */
void host_cache_open(const struct stat *of, struct host_cache_item *ret);

/* Of a claimed item; NULL when there is no room: make it elsewhere. */
uint8_t *host_cache_reserve(struct host_cache_item *item, size_t n_bytes);

/*
 * complete: a claimed item has been written. *ret_data is then where it can be read, for host_cache_unmap();
 * NULL when it cannot be had. A ready item gives its data the same way. NONE is fine.
 */
void host_cache_close(struct host_cache_item *item, bool complete, uint8_t **ret_data, size_t *ret_n_bytes);
void host_cache_unmap(uint8_t *data, size_t n_bytes);
