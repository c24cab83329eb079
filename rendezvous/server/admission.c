#include "rendezvous/server/admission.h"

/* An agent greets at once and sends its hello a round trip later. */
enum { UNUSED_MS = 5000, URGENT_MS = 250 };

void admission_init(struct admission *a, unsigned limit, bool serves_agents)
{
    unsigned share = limit / 8;

    *a = (struct admission){.limit = limit};
    if (serves_agents)
        a->reserved = share < ADMISSION_RESERVED_MAX ? share : ADMISSION_RESERVED_MAX;
}

bool admission_is_open(const struct admission *a, unsigned n)
{
    return n + a->reserved <= a->limit && (a->n_scarce == 0 || n <= a->n_scarce);
}

/* Of few descriptors fewer are kept, as of few connections. */
static uint64_t reserved_descriptors(const struct admission *a, uint64_t fd_limit)
{
    return fd_limit / 8 < a->reserved ? fd_limit / 8 : a->reserved;
}

/*
 * All numbers below fd are in use, so what is at and behind the first that is for agents is beyond n_scarce. The number of a connection
 * that was closed for another one is given again while all others are in use: so how many connections there were when the numbers
 * were used up is kept until far fewer are left.
 */
static void note_descriptor(struct admission *a, unsigned n, uint64_t fd, uint64_t fd_limit)
{
    uint64_t first = fd_limit - reserved_descriptors(a, fd_limit), beyond;

    if (fd + 1 >= fd_limit)
        a->n_full = n;
    else if (n < a->n_full - a->n_full / 4)
        a->n_full = 0;
    if (fd + 1 < first)
        return;
    beyond = fd + 1 - first;
    a->n_scarce = beyond < n ? n - (unsigned)beyond : 1;
}

enum admission_place admission_take(struct admission *a, unsigned n, uint64_t fd, uint64_t fd_limit)
{
    if (n >= a->limit)
        return ADMISSION_NO_CONNECTION;
    note_descriptor(a, n, fd, fd_limit);
    if (fd + 1 >= fd_limit || (a->n_full > 0 && n >= a->n_full))
        return ADMISSION_NO_DESCRIPTOR;
    return admission_is_open(a, n + 1) ? ADMISSION_OPEN : ADMISSION_RESERVED;
}

bool admission_may_close(const struct admission *a, enum admission_kind kind, uint64_t age_ms,
                         enum admission_place place)
{
    bool urgent = a->reserved > 0 && place >= ADMISSION_NO_DESCRIPTOR;

    if (place == ADMISSION_OPEN)
        return false;
    return urgent ? age_ms >= URGENT_MS : kind == ADMISSION_UNUSED && age_ms >= UNUSED_MS;
}
