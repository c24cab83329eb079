#pragma once

/*
 * crunctl's side of a look at a rendezvous: a crund or the crun that serves one. Blocks, for at most patience_ms for each
 * wait.
 */

#include <stdbool.h>
#include <stddef.h>

struct looked;
struct tls_context;

enum { LOOK_CLIENT_ERROR_SIZE = 512 }; /* with why a certificate is refused */

struct look_target {
    const char *endpoint; /* HOST, HOST:PORT, [IPV6]:PORT, or the path of a unix socket (with a "/") */
    const char *job;      /* NULL: all */
    bool wants_history, wants_stacks;
    int patience_ms; /* then the answer is -ETIMEDOUT */
    struct tls_context *
        tls; /* NULL: in the clear, for a unix socket. Of certificates: that of the rendezvous names the host. */
};

/* 0 with everything that the rendezvous answers, over several answers where it is long; or -errno and a sentence.
 * looked_finish() in both cases. */
int look_client_ask(const struct look_target *target, struct looked *ret, char error[LOOK_CLIENT_ERROR_SIZE]);
