#pragma once

/*
 * What this node proves to the rendezvous and to worker stores, and, where it serves them itself, what the others have to prove:
 * keys of the job's secret, or certificates. With both, certificates are for sessions with the rendezvous, and the secret for the rest.
 */

#include "launcher/cli/slurm.h"
#include "proto/key_exchange.h"
#include "proto/secret_os.h"
#include "proto/tls_openssl.h"
#include "rendezvous/server/server_security.h"

/* Where nodes agree on a secret by munge. */
struct munge_secret {
    char socket[MUNGE_SOCKET_SIZE]; /* "": the library's own */
    uint8_t secret[KEY_EXCHANGE_SECRET_SIZE];
};

/* In memory that no core file has. */
struct kept_keys {
    struct secret_key of[KEY_PURPOSE_COUNT]; /* with a secret */
    struct munge_secret munge;
};

struct job_keys {
    struct tls_context *client; /* of sessions with the rendezvous */
    struct tls_context *store;  /* of proofs to a worker store */
    struct tls_context *relay;  /* of this node's store to the rendezvous, which keeps the keys */
    struct tls_context *server; /* with certificates: of what this node serves; else NULL */
    bool has_secret;
    struct kept_keys *kept;
    const char *job; /* the id; lives as long as this */
    bool by_munge;   /* the node that serves the rendezvous has made the secret */
    bool is_settled; /* else the secret is one that this node would give to the others */
};

/*
 * Of that job. secret: without bytes there is none; files: NULL: there are no certificates; one of both is there. host: of the endpoint,
 * as the rendezvous' certificate has to name it. Neither is needed afterwards. 0, or -errno: `why` has a sentence.
 */
int job_keys_init(struct job_keys *k, const struct secret *secret, const struct certificate_files *files,
                  const char *job, const char *host, char why[CERTIFICATE_ERROR_SIZE]);

/* The same, of a random secret that other nodes get by munge, if this node serves the rendezvous; otherwise job_keys_renew()
 * follows. */
int job_keys_init_munge(struct job_keys *k, const char *socket, const char *job,
                        char why[CERTIFICATE_ERROR_SIZE]);

/* A key of workers and a period: newlines at the end of a secret do not count. */
enum { JOB_WORKERS_KEY_SIZE = KEY_SIZE + 1 };

/* The key of workers alone, in place of a secret: another process admits this node to the rendezvous, and to the keys there. As
 * job_keys_init(). */
int job_keys_init_workers(struct job_keys *k, const struct secret *key, const char *job,
                          char why[CERTIFICATE_ERROR_SIZE]);

/* The keys of the secret that another node has made; no connection may use those before. As job_keys_init(). */
int job_keys_renew(struct job_keys *k, const struct munge_secret *munge, char why[CERTIFICATE_ERROR_SIZE]);

/* After all connections that use them. */
void job_keys_finish(struct job_keys *k);

/* The rendezvous of this job alone, for server_create(). exchange: how agents get the secret, NULL: they have it. */
struct server_security job_keys_of_rendezvous(struct job_keys *k, const struct server_exchange *exchange);

/* A worker store of this job: it accepts workers of nodes that have proved the key. */
struct server_security job_keys_of_store(struct job_keys *k);
