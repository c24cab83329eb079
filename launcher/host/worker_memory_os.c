#include "launcher/host/worker_memory_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"

int worker_memory_init(struct worker_memory *h, int n_workers)
{
    *h = (struct worker_memory){.key = -1, .door = {-1, -1}};
    h->states = malloc((size_t)n_workers * sizeof(*h->states));
    if (!h->states)
        return -ENOMEM;
    h->n_workers = n_workers;
    /* A worker is started without one that cannot be had (no descriptor left, no such call). */
    for (int i = 0; i < n_workers; i++)
        h->states[i] = memfd_create("crun-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, h->door) < 0)
        h->door[0] = h->door[1] = -1;
    return 0;
}

int worker_memory_add_key(struct worker_memory *h, const void *bytes, size_t n)
{
    enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };
    _cleanup_close_ int fd = memfd_create("crun-key", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    ssize_t written = write(fd, bytes, n);
    if (written != (ssize_t)n)
        return written < 0 ? -errno : -EIO;
    if (fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    h->key = steal_fd(&fd);
    return 0;
}

void worker_memory_finish(struct worker_memory *h)
{
    if (!h->states)
        return;
    for (int i = 0; i < h->n_workers; i++)
        close_fd(&h->states[i]);
    close_fd(&h->key);
    close_fd(&h->door[0]);
    close_fd(&h->door[1]);
    free(h->states);
    *h = (struct worker_memory){.key = -1, .door = {-1, -1}};
}
