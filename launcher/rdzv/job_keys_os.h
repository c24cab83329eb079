#pragma once

/*
 * What the secret of one job gives this node: the key that it proves to the rendezvous, and, where it serves the rendezvous
 * itself, the key that the others have to prove.
 */

#include "proto/secret_os.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server_security.h"

struct job_keys {
    struct tls_context *client; /* of sessions with the rendezvous */
    struct tls_context *store;  /* of proofs to a worker store */
    struct tls_context *relay;  /* of this node's store to the worker store */
    struct secret_key keys[KEY_PURPOSE_COUNT];
    const char *job; /* the id; lives as long as this */
};

/* The keys of that job; the secret is not needed afterwards. 0, -ENOSYS or -ENOMEM: `why` has a sentence. */
int job_keys_init(struct job_keys *k, const struct secret *secret, const char *job, char why[TLS_ERROR_SIZE]);

/* After all connections that use them. */
void job_keys_finish(struct job_keys *k);

/* The rendezvous of this job alone, for server_create(). */
struct server_security job_keys_of_rendezvous(struct job_keys *k);

/* A worker store of this job to which the stores of other nodes forward. */
struct server_security job_keys_of_sealed_store(struct job_keys *k);

/* A worker store of this job: it accepts workers of nodes that have proved the key. */
struct server_security job_keys_of_store(struct job_keys *k);
