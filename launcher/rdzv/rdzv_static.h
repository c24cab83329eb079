#pragma once

/*
 * One node of a static rendezvous: a client of the store that node 0 serves, which says and reads what
 * torchrun's agents do, so that either may be any node. Pure: bytes go in and out through `client`.
 *
 *   join    VALIDATE, PING, ADD init/ 1; SET role_info of this node;
 *           node 0: WAIT for everybody's role_info, read them, SET everybody's assigned_ranks
 *           others: WAIT for their own assigned_ranks, GET it
 *   leave   ADD terminal_state/num_members 1; the last one SETs .../last_member, the others WAIT for it
 *
 * Once a second the owner may ask how many are there (init/ counts connections, which is only as good as it
 * gets: a node that was started twice is two).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/client.h"
#include "rendezvous/session_message.h"

struct rdzv_static_config {
    const char *run_id, *role;
    uint32_t rank, n_nodes, n_workers;
    bool identical; /* TORCH_ELASTIC_WORKER_IDENTICAL=1: all nodes are alike, nothing is exchanged */
};

enum rdzv_static_stage {
    STATIC_GREETING,
    STATIC_GATHERING, /* node 0: for all role_infos; others: for their ranks */
    STATIC_READING,   /* what was waited for */
    STATIC_PLACED,
    STATIC_LEAVING, /* has said that its workers are done */
    STATIC_LEFT,    /* and so have all */
};

struct rdzv_static {
    struct rdzv_static_config config;
    struct client client;
    enum rdzv_static_stage stage;
    uint32_t n_there;             /* nodes seen so far */
    struct rank_assignment place; /* from STATIC_PLACED on; without the master's address */
    const char *error;            /* a part of a sentence */
};

/* The strings must live as long. */
void rdzv_static_init(struct rdzv_static *n, const struct rdzv_static_config *config);
void rdzv_static_finish(struct rdzv_static *n);

/* Each appends to client.out; 0, -ENOMEM or CLIENT_E_*. */
int rdzv_static_join(struct rdzv_static *n);  /* the connection is there */
int rdzv_static_count(struct rdzv_static *n); /* refreshes n_there */
int rdzv_static_leave(struct rdzv_static *n); /* its workers are done */

enum { STATIC_E_BAD = 100 }; /* besides CLIENT_E_*: n->error says what is wrong with what the store holds */

/* Works on what was appended to client.in, and appends to client.out. 0: look at the stage; -ENOMEM,
 * CLIENT_E_PROTOCOL (client.error), STATIC_E_BAD: over. */
int rdzv_static_hear(struct rdzv_static *n);
