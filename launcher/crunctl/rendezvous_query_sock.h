#pragma once

/*
 * crunctl's side of a look at a rendezvous: a crund or the crun that serves one. Blocks, for at most patience_ms for each
 * wait.
 */

#include <stdbool.h>

struct query_answer;
struct tls_context;

enum { RENDEZVOUS_QUERY_ERROR_SIZE = 512 }; /* with why a certificate is refused */

struct rendezvous_query {
    const char *endpoint; /* HOST, HOST:PORT, [IPV6]:PORT, or the path of a unix socket (with a "/") */
    const char *job;      /* NULL: all */
    bool wants_stacks;
    int patience_ms; /* then the answer is -ETIMEDOUT */
    struct tls_context *
        tls; /* NULL: in the clear, for a unix socket. Of certificates: that of the rendezvous names the host. */
};

/* 0 with everything that the rendezvous answers, over several answers where it is long; or -errno and a sentence.
 * query_answer_finish() in both cases. */
int rendezvous_query(const struct rendezvous_query *target, struct query_answer *ret,
                     char error[RENDEZVOUS_QUERY_ERROR_SIZE]);
