#pragma once

/*
 * Which agents a server lets in.
 */

#include <stdbool.h>

#include "proto/secret_key.h"

/* Jobs for which find_key has a key are closed: their agents have to prove it. Other jobs are open, unless `require`. */
struct server_security {
    secret_key_find *find_key; /* called on the server's loop: may not block */
    void *data;
    bool require;
    /* Clients of the store are accepted only from addresses from which an agent has proved the store's key. */
    bool fence;
};
