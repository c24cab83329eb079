#pragma once

/*
 * The way from crunds to a model of etcd and back, for simulators: requests that are delayed, lost, answered too late, or carried
 * out long after their sender has given up, and times without a majority.
 *
 * The owner's schedule has the two moments of a request: at the first it calls etcd_link_apply(), at the second
 * etcd_link_answer(), both with the number that is the moment's detail; the moment's `who` is the sender.
 */

#include "rendezvous/etcd/etcd_leader.h"
#include "tests/sim/random.h"
#include "tests/sim/schedule.h"
#include "tests/support/c/etcd_model.h"

enum { ETCD_LINK_REQUEST_MS = 2500 /* as ETCD_ALL_MS */ };

enum etcd_lane_of_crund { ETCD_LINK_WORK, ETCD_LINK_LEASE };

/* A request on its way. */
struct etcd_flight {
    struct etcd_request request;
    struct etcd_reply reply;
    unsigned sender;
    uint64_t life; /* of the sender */
    enum etcd_lane_of_crund lane;
    bool is_unknown, is_unsent; /* how it is answered, whatever becomes of it */
    bool is_answered, is_applied, is_lost;
};

struct etcd_link {
    struct etcd_model model;
    struct etcd_flight **flights;
    size_t n_flights, capacity;
    bool is_down;           /* no majority */
    bool is_full;           /* what writes is refused, and leases are renewed */
    unsigned fault_percent; /* of requests that are lost or late */
    struct random *random;
    struct schedule *schedule;
    uint32_t apply_moment, answer_moment; /* kinds of the schedule's moments */
};

void etcd_link_init(struct etcd_link *l, struct random *random, struct schedule *schedule,
                    uint32_t apply_moment, uint32_t answer_moment);
void etcd_link_finish(struct etcd_link *l);

/* Takes what the core wants sent; is_cut: the sender does not reach etcd. Returns when the sender has an answer at the latest,
 * as far as the network is the reason. */
uint64_t etcd_link_send(struct etcd_link *l, uint64_t now_ns, unsigned sender, uint64_t life,
                        enum etcd_lane_of_crund lane, struct etcd_request *request, bool is_cut);

/* The request arrives at etcd. */
void etcd_link_apply(struct etcd_link *l, uint64_t now_ns, size_t number);

/* Before that: etcd has carried the request out, and the sender will know. */
bool etcd_link_has_answer(const struct etcd_link *l, size_t number);

/* Gives the answer to the core of the sender, if that process is still there. False: it is not. */
bool etcd_link_answer(struct etcd_link *l, size_t number, struct etcd_leader *core, uint64_t life,
                      uint64_t clock_ns);
