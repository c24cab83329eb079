#pragma once

/*
 * What etcd does with the requests of etcd.h: keys with revisions, leases with an end, transactions that are carried out as a
 * whole or not at all, and its limits. In memory, and with a time that the caller gives.
 */

#include "rendezvous/etcd/etcd.h"

enum { ETCD_MODEL_LEASES = 256 };

struct etcd_model_lease {
    int64_t id; /* 0: none */
    uint64_t ttl_ns, until_ns;
};

struct etcd_model {
    int64_t revision;
    struct etcd_pair *keys; /* in their order */
    size_t n_keys, capacity;
    struct etcd_model_lease leases[ETCD_MODEL_LEASES];
    int64_t n_leases;
    uint64_t n_puts;
};

void etcd_model_init(struct etcd_model *m);
void etcd_model_finish(struct etcd_model *m);

/* Carries it out; the reply is the caller's. */
void etcd_model_apply(struct etcd_model *m, const struct etcd_request *request, uint64_t now_ns,
                      struct etcd_reply *ret);

/* Ends the leases whose time is over, and removes their keys. */
void etcd_model_expire(struct etcd_model *m, uint64_t now_ns);

/* NULL: there is none. */
const struct etcd_pair *etcd_model_find(const struct etcd_model *m, const char *key);
