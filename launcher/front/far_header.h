#pragma once

/* What a front sends in front of everything else: secret, working directory, environment and arguments of the agent. Pure. */

#include <stdbool.h>
#include <stddef.h>

#include "launcher/front/channel_frame.h"
#include "launcher/util/strlist.h"

struct far_header {
    size_t n_bytes; /* heads and payloads so far */
    bool has_secret;
    char secret[CHANNEL_SECRET_MAX];
    size_t n_secret;
    struct strlist directory, variables,
        arguments; /* directory: at most one; none: where the far end was started */
    struct channel_start start;
};

/* Takes one frame. 1: the header is complete. 0: more follows. -EBADMSG: the frame has no place in a header; -E2BIG: above
 * CHANNEL_HEADER_MAX; -ENOMEM. */
int far_header_take(struct far_header *h, const struct channel_frame *frame);

/* All but `start`. Overwrites the secret. */
void far_header_finish(struct far_header *h);

/* The arguments behind crun's name, --local-addr and --rdzv-endpoint: an option of the header comes later, and wins. Check
 * ret->failed. */
void far_header_arguments(const struct far_header *h, const char *local_addr, const char *endpoint,
                          struct strlist *ret);
