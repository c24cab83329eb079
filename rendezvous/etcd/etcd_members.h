#pragma once

/*
 * Which member of etcd is asked next, and for how long: a pure decision, for one connection of etcd_client_os.c.
 *
 * A member whose host is lost answers nothing, and one that has lost the leader of etcd answers when there is a new one, or never: a
 * keepalive that it has passed on to the host of the old leader ends only by its sender. So a brief request (see
 * etcd_request_is_brief()) is given to each member for a short time first, and then again for a longer one. Each other one has all
 * the time: it must not be sent twice, or its answer takes long by its size. Where a member accepts no connection, the
 * others are asked before it for a while: those can answer as soon as etcd has elected a leader.
 */

#include "rendezvous/etcd/etcd.h"

enum {
    ETCD_ALL_MS = 2500,    /* for a request, with all attempts */
    ETCD_FIRST_MS = 400,   /* for the first attempt at each member */
    ETCD_AGAIN_MS = 650,   /* for further ones */
    ETCD_AVOIDED_MS = 5000 /* after a connection could not be made */
};

/* At the start: n > 0, and all other members are zero. */
struct etcd_members {
    size_t n, at; /* at: the member to be asked */
    uint64_t avoided_until_ns[ETCD_ENDPOINTS_MAX];
    /* of the present request */
    uint64_t until_ns;
    size_t n_asked;
    bool is_brief;
};

/* A request. */
void etcd_members_begin(struct etcd_members *m, bool is_brief, uint64_t now_ns);

/* False: the request has failed. Otherwise member m->at has until *ret_until_ns to answer. */
bool etcd_members_next(struct etcd_members *m, uint64_t now_ns, uint64_t *ret_until_ns);

/* That member has not answered; is_away: no connection to it could be made. */
void etcd_members_fail(struct etcd_members *m, bool is_away, uint64_t now_ns);
