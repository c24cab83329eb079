#pragma once

/*
 * A service of a server: the store, the rounds, the keys of jobs, a key exchange, a fence. The loop (server_uv.c,
 * listener_uv.c) knows connections and a list of services, no service by name. daemon/compose_uv.c states the services of a
 * server and their order.
 *
 *   create -> add to the list -> start -> adopt, admit, make_room, run_turn -> drain -> stop -> destroy
 *
 * Services are started, asked and given turns in the order of the list, and drained, stopped and destroyed in reverse. A verb
 * other than destroy() may be NULL: the service has no such part. A service knows the loop and no other service; two services
 * share only a callback given by compose_uv.c.
 *
 * A new service is a file with a function that calls server_add_service() (server_impl_uv.h), and a row in the table of compose_uv.c.
 * The stores of crun are such servers, too: a function of compose_uv.c adds nothing where struct server_config has no use for
 * the service. A service with adopt() bounds the number of connections and the time of each. Each connection ends with
 * server_close_conn(), close() and server_peer_gone(); keys/exchange_uv.c is the shortest example.
 */

#include <stdbool.h>
#include <stdint.h>

#include "rendezvous/server/admission.h"

struct buf;
struct conn_owner;
struct deadlines;
struct metrics_text;

/* Place of the byte of a connection that selects a service. */
enum server_opening {
    OPENING_FIRST,   /* the first byte of the connection */
    OPENING_GREETED, /* the first byte of any message behind the store's greeting */
    OPENING_COUNT
};

struct server_service {
    void *self;
    /* No operation of the store (enum wire_op); 0: none. In use: 0x16 (TLS_FIRST_BYTE), 0x63 (RELAY_FIRST_BYTE), 0xc5
     * (FRAME_FIRST_BYTE) and 0xc6 (KEY_EXCHANGE_FIRST_BYTE). */
    uint8_t openings[OPENING_COUNT];
    /* Its lists of connections by deadline; NULL: none. They begin with start(), and end behind stop(). */
    struct deadlines *deadlines[2];
    /* Opens the handles. */
    void (*start)(void *self);
    /* Takes the socket of a client that began with an opening, and the bytes from the opening on. Owns all three. */
    void (*adopt)(void *self, int fd, const struct conn_owner *owner, struct buf *bytes);
    /* Takes an accepted socket; the first service with an admit() gets the socket. for_agent: connections are scarce, and
     * anything but an opening ends the connection. 0 or -errno; fd is closed then. */
    int (*admit)(void *self, int fd, const struct conn_owner *owner, bool for_agent);
    /* Closes a connection of little use, if a new connection with `place` may have the room. False: no such connection. */
    bool (*make_room)(void *self, enum admission_place place);
    /* A bounded part of the work left for turns of the loop; is_busy: there is such work. */
    void (*run_turn)(void *self);
    bool (*is_busy)(void *self);
    /* Metrics of the service; server_write_metrics() in server_uv.c has those of the loop. man/crund.8 lists each metric. */
    void (*write_metrics)(const void *self, struct metrics_text *m);
    /* Executes nothing any more, sends decided output, and closes connections as soon as the output is read. */
    void (*drain)(void *self);
    /* Closes all connections and handles. */
    void (*stop)(void *self);
    /* When no handle of the server is open. */
    void (*destroy)(void *self);
};
