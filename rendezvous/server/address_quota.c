#include "rendezvous/server/address_quota.h"

#include <stdlib.h>
#include <string.h>

enum { FDS_MIN = 64 };

static bool has_room_for(struct address_quota *q, size_t fd)
{
    size_t n = q->n_fds ? q->n_fds : FDS_MIN;
    uint16_t *grown;

    if (fd < q->n_fds)
        return true;
    while (n <= fd)
        n *= 2;
    grown = realloc(q->counter_of_fd, n * sizeof(*grown));
    if (!grown)
        return false;
    memset(grown + q->n_fds, 0, (n - q->n_fds) * sizeof(*grown));
    q->counter_of_fd = grown;
    q->n_fds = n;
    return true;
}

bool address_quota_take(struct address_quota *q, int fd, uint64_t owner)
{
    size_t counter = 0;

    if (q->max == 0)
        return true;
    address_quota_release(q, fd); /* of a connection that was given away */
    if (owner > 0)
        counter = 1 + siphash13(q->seed, &owner, sizeof(owner)) % (ADDRESS_QUOTA_COUNTERS - 1);
    if (q->counts[counter] >= q->max || !has_room_for(q, (size_t)fd))
        return false;
    q->counts[counter]++;
    q->counter_of_fd[fd] = (uint16_t)(counter + 1);
    return true;
}

uint16_t address_quota_counter(const struct address_quota *q, int fd)
{
    return (size_t)fd < q->n_fds && q->counter_of_fd[fd] > 0 ? q->counter_of_fd[fd] - 1 : 0;
}

void address_quota_release(struct address_quota *q, int fd)
{
    if ((size_t)fd >= q->n_fds || q->counter_of_fd[fd] == 0)
        return;
    q->counts[q->counter_of_fd[fd] - 1]--;
    q->counter_of_fd[fd] = 0;
}

void address_quota_finish(struct address_quota *q)
{
    free(q->counter_of_fd);
}
