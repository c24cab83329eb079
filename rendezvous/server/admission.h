#pragma once

/*
 * Which connections a server takes when they are nearly used up, by --max-connections or by descriptors. No I/O.
 *
 * The last of them are kept for agents: a connection that takes one of these has to open an agent session, and is closed when it
 * requests anything of the store while they are still scarce. Until it does, the server does not know what it is: connections
 * that only use up room are closed for new ones, those that are of the least use first.
 */

#include <stdbool.h>
#include <stdint.h>

enum { ADMISSION_RESERVED_MAX = 64 };

struct admission {
    unsigned limit;    /* connections at a time */
    unsigned reserved; /* of these, for agents; 0: all are for any client */
    unsigned
        n_scarce; /* connections for which there were descriptors beside those for agents, as was last seen; 0: enough */
    unsigned n_full; /* connections that took all descriptors, as was last seen; 0: there were enough */
};

enum admission_place {
    ADMISSION_OPEN,          /* for any client */
    ADMISSION_RESERVED,      /* for an agent */
    ADMISSION_NO_DESCRIPTOR, /* the last descriptor, for an agent */
    ADMISSION_NO_CONNECTION, /* none */
};

/* What a connection has shown of itself. */
enum admission_kind {
    ADMISSION_SILENT,   /* not greeted */
    ADMISSION_UNUSED,   /* greeted, and requested nothing */
    ADMISSION_UNJOINED, /* an agent session without a hello */
};

/* serves_agents: else nothing is kept. */
void admission_init(struct admission *a, unsigned limit, bool serves_agents);

/* The place of a new connection beside n others. fd: its descriptor; fd_limit: the first number that is not for connections,
 * UINT64_MAX: any is. The kernel gives the lowest free number. */
enum admission_place admission_take(struct admission *a, unsigned n, uint64_t fd, uint64_t fd_limit);

/* Whether one of n connections, which has a place for agents, may now be any client's. */
bool admission_is_open(const struct admission *a, unsigned n);

/* Whether a connection of that kind may be closed for a new one with that place, after age_ms without anything else. */
bool admission_may_close(const struct admission *a, enum admission_kind kind, uint64_t age_ms,
                         enum admission_place place);
