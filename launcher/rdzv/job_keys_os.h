#pragma once

/*
 * What this node proves to the rendezvous and to worker stores, and, where it serves them itself, what the others have to prove:
 * keys of the job's secret, or certificates. With both, certificates are for sessions with the rendezvous, and the secret for the rest.
 */

#include "proto/secret_os.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server_security.h"

struct job_keys {
    struct tls_context *client; /* of sessions with the rendezvous */
    struct tls_context *store;  /* of proofs to a worker store */
    struct tls_context *relay;  /* of this node's store to the worker store */
    struct tls_context *server; /* with certificates: of what this node serves; else NULL */
    bool has_secret;
    struct secret_key keys[KEY_PURPOSE_COUNT]; /* with a secret */
    const char *job;                           /* the id; lives as long as this */
};

/*
 * Of that job. secret: without bytes there is none; files: NULL: there are no certificates; one of both is there. host: of the endpoint,
 * as the rendezvous' certificate has to name it. Neither is needed afterwards. 0, or -errno: `why` has a sentence.
 */
int job_keys_init(struct job_keys *k, const struct secret *secret, const struct certificate_files *files,
                  const char *job, const char *host, char why[CERTIFICATE_ERROR_SIZE]);

void job_keys_finish(struct job_keys *k);

/* The rendezvous of this job alone, for server_create(). */
struct server_security job_keys_of_rendezvous(struct job_keys *k);

/* A worker store of this job to which the stores of other nodes forward. */
struct server_security job_keys_of_sealed_store(struct job_keys *k);

/* A worker store of this job: it accepts workers of nodes that have proved the key. */
struct server_security job_keys_of_store(struct job_keys *k);
