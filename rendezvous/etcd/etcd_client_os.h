#pragma once

/*
 * Sends requests to etcd: two threads, each with one connection (libcurl) and one request at a time. The lease has a thread of
 * its own, so that a slow write does not let it expire.
 *
 * The members are tried in turn (etcd_members.h), beginning with the one that answered last. A request goes on to the next member
 * only when it has not been sent to this one, or when it may be carried out twice (all but ETCD_TXN). It ends within
 * ETCD_ALL_MS. A login that has expired is renewed.
 *
 * Failure: threads or memory: etcd_client_create() returns -errno.
 */

#include "rendezvous/etcd/etcd.h"

enum { ETCD_CONNECT_MS = 400 /* with the handshake of TLS */ };

enum etcd_lane { ETCD_LANE_WORK, ETCD_LANE_LEASE, ETCD_LANE_COUNT };

struct etcd_client_config {
    struct etcd_url url;
    struct etcd_access access;
    void (*answered)(void *data); /* in a thread: etcd_client_take() has something */
    void *data;
};

struct etcd_client;

/* 0 or -errno; *ret_why is then a part of a sentence. */
int etcd_client_create(struct etcd_client **ret, const struct etcd_client_config *config,
                       const char **ret_why);

/* Takes what the request holds. The lane has none: the reply to the last one was taken. */
void etcd_client_send(struct etcd_client *c, enum etcd_lane lane, struct etcd_request *request);

/* The reply, which the caller frees; false: there is none yet. */
bool etcd_client_take(struct etcd_client *c, enum etcd_lane lane, struct etcd_reply *ret);

/* Ends the threads, which may take a second. NULL is fine. */
void etcd_client_destroy(struct etcd_client *c);
