#pragma once

/* Listening addresses of the servers inside crun: the rendezvous and the worker stores. */

#include <stdint.h>

struct server;

/* Listens on 127.0.0.1, and on ::1 with the same port where this machine has IPv6. As server_listen_tcp(). */
int listen_on_loopback(struct server *server, uint16_t port, uint16_t *ret_port);
