#include "rendezvous/keys/fence.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* In the form of IPv6, which holds both. */
static bool normalize(const struct sockaddr *address, uint8_t ret[FENCE_ADDRESS_SIZE])
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;

    memset(ret, 0, FENCE_ADDRESS_SIZE);
    if (address->sa_family == AF_INET6) {
        memcpy(ret, &v6->sin6_addr, FENCE_ADDRESS_SIZE);
        return true;
    }
    ret[10] = ret[11] = 0xff;
    memcpy(ret + 12, &v4->sin_addr, 4);
    return address->sa_family == AF_INET;
}

/* The place of the first item that is not below it. */
static size_t find_place(const struct fence *f, const uint8_t address[FENCE_ADDRESS_SIZE])
{
    size_t low = 0, high = f->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (memcmp(f->items[middle], address, FENCE_ADDRESS_SIZE) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_at(const struct fence *f, size_t place, const uint8_t address[FENCE_ADDRESS_SIZE])
{
    return place < f->n && memcmp(f->items[place], address, FENCE_ADDRESS_SIZE) == 0;
}

static int grow(struct fence *f)
{
    size_t capacity = f->capacity ? 2 * f->capacity : 16;
    void *items;

    if (f->n < f->capacity)
        return 0;
    if (f->n == FENCE_ADDRESSES_MAX)
        return -ENOSPC;
    items = realloc(f->items, capacity * sizeof(*f->items));
    if (!items)
        return -ENOMEM;
    f->items = items;
    f->capacity = capacity;
    return 0;
}

int fence_allow(struct fence *f, const struct sockaddr *address)
{
    uint8_t wanted[FENCE_ADDRESS_SIZE];
    size_t place;
    int r;

    if (!normalize(address, wanted))
        return -EAFNOSUPPORT;
    place = find_place(f, wanted);
    if (is_at(f, place, wanted))
        return 0;
    r = grow(f);
    if (r < 0)
        return r;
    memmove(f->items + place + 1, f->items + place, (f->n - place) * sizeof(*f->items));
    memcpy(f->items[place], wanted, FENCE_ADDRESS_SIZE);
    f->n++;
    return 0;
}

bool fence_allows(const struct fence *f, const struct sockaddr *address)
{
    uint8_t wanted[FENCE_ADDRESS_SIZE];

    if (address->sa_family == AF_UNIX)
        return true;
    return normalize(address, wanted) && is_at(f, find_place(f, wanted), wanted);
}

void fence_finish(struct fence *f)
{
    free(f->items);
    *f = (struct fence){0};
}
