#pragma once

/*
 * One node of a static rendezvous: a client of the store that node 0 serves, which sends and reads the same keys as
 * torchrun's agents, so that any node may be either. Pure: bytes go in and out through `client`.
 *
 *   join    VALIDATE, PING, ADD init/ 1; SET role_info of this node;
 *           node 0: WAIT for all role_info keys, read them, SET all assigned_ranks keys
 *           others: WAIT for their own assigned_ranks, GET it
 *   leave   ADD terminal_state/num_members 1; the last one SETs .../last_member, the others WAIT for it
 *
 * Like torchrun's static rendezvous this one neither reports a failure to other nodes nor begins again with an empty store.
 *
 * Once a second the owner may query how many nodes are there. init/ counts connections, so a node that was started twice
 * counts as two. So that it is noticed, each crun that still waits then adds itself to a counter of its node rank, once.
 */

#include <stdbool.h>
#include <stdint.h>

#include "proto/client.h"
#include "rendezvous/session/session_message.h"

struct rdzv_static_config {
    const char *run_id, *role;
    uint32_t rank, n_nodes, n_workers;
    bool identical; /* TORCH_ELASTIC_WORKER_IDENTICAL=1: all nodes are alike, nothing is exchanged */
};

enum rdzv_static_stage {
    STATIC_GREETING,
    STATIC_GATHERING, /* node 0: for all role_infos; others: for their ranks */
    STATIC_READING,   /* the keys that it has waited for */
    STATIC_ASSIGNED,
    STATIC_LEAVING,  /* it has reported that its workers are done */
    STATIC_DEPARTED, /* all nodes have */
};

struct rdzv_static {
    struct rdzv_static_config config;
    struct client client;
    enum rdzv_static_stage stage;
    uint32_t n_there;                  /* nodes seen so far */
    bool is_counted;                   /* among those of its node rank */
    bool has_twin;                     /* another crun of this job has or had the same node rank */
    struct rank_assignment assignment; /* from STATIC_ASSIGNED on; without the address of the master */
    const char *error;                 /* a part of a sentence */
};

/* The strings of the config must live as long. */
void rdzv_static_init(struct rdzv_static *n, const struct rdzv_static_config *config);
void rdzv_static_finish(struct rdzv_static *n);

/* Each appends to client.out; 0, -ENOMEM or CLIENT_E_*. */
int rdzv_static_join(struct rdzv_static *n);  /* the connection is established */
int rdzv_static_count(struct rdzv_static *n); /* refreshes n_there and has_twin */
int rdzv_static_leave(struct rdzv_static *n); /* its workers are done */

enum {
    STATIC_E_BAD = 100
}; /* besides CLIENT_E_*: n->error describes what is wrong with a value in the store */

/* Takes the replies in client.in, and appends requests to client.out. 0: see the stage; -ENOMEM, CLIENT_E_PROTOCOL
 * (client.error) and STATIC_E_BAD end the conversation. */
int rdzv_static_receive(struct rdzv_static *n);
