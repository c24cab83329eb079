#pragma once

/*
 * What one owner of clients may hold of a store that several share: an address, or a user of this machine. It may take what
 * leaves as much free as it then holds. One owner alone so gets half of a limit; the next one gets half of what that leaves, and so
 * on, or n owners that take by turns a part in n + 1 each. So none uses the limit up for the others, and n owners together leave
 * at least a part in 2 to the n: a bound for users who share a crund, not for one that has dozens of addresses or user ids.
 *
 * A value, an item of a queue and a wait count for the owner whose request made them. The name counts once: for the owner that made
 * the key, also when another one replaces the value, else for that of the first item of its queue, or of the first that waits for it. Where the
 * share of that one has no room for the name, it stays with the owner that it counted for, until the name changes again.
 *
 * Owners have numbers. Number 0 is for clients that may use the whole limit, and is not counted.
 */

#include <stdbool.h>
#include <stdint.h>

struct store_share {
    uint64_t bytes;
    uint64_t keys;
};

/* Whether an owner that holds `own` of the `used` units may take n more, where max is the limit of all. */
static inline bool store_share_fits(uint64_t own, uint64_t used, uint64_t n, uint64_t max)
{
    uint64_t left = used <= max && n <= max - used ? max - used - n : 0;

    return own + n <= left;
}
