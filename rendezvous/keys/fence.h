#pragma once

/*
 * The set of addresses from which a fenced server accepts clients. IPv4 addresses and their form in IPv6 are the same
 * address; ports do not count. No I/O.
 */

#include <stdbool.h>
#include <stddef.h>

enum { FENCE_ADDRESSES_MAX = 65536 };

struct fence {
    void *items; /* their text: a tree of tsearch() */
    size_t n;
};

struct sockaddr;

/* 0 also if it was there; -ENOMEM, -ENOSPC past FENCE_ADDRESSES_MAX, -EAFNOSUPPORT for another family. */
int fence_allow(struct fence *f, const struct sockaddr *address);

/* A unix socket is allowed by its file's mode, and always here. */
bool fence_allows(const struct fence *f, const struct sockaddr *address);

void fence_finish(struct fence *f);
