#include "launcher/rdzv/job_keys_os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/random_os.h"
#include "proto/key_memory_os.h"

static int begin_keys(struct job_keys *k, const char *job, char why[CERTIFICATE_ERROR_SIZE])
{
    secret_hide_process();
    *k = (struct job_keys){.job = job, .kept = key_memory_new(sizeof(*k->kept))};
    if (k->kept)
        return 0;
    (void)snprintf(why, CERTIFICATE_ERROR_SIZE, "out of memory");
    return -ENOMEM;
}

static int init_secret(struct job_keys *k, const void *secret, size_t size, char why[CERTIFICATE_ERROR_SIZE])
{
    const char *reason, *job = k->job;
    int r = 0;

    for (enum key_purpose p = 0; p < KEY_PURPOSE_COUNT && r == 0; p++)
        r = key_derive(&k->kept->of[p], secret, size, p, p == KEY_ADMIN ? "" : job, &reason);
    if (r < 0) {
        (void)snprintf(why, CERTIFICATE_ERROR_SIZE, "%s", reason);
        return r;
    }
    k->has_secret = true;
    TRY(tls_context_client(&k->client, KEY_AGENT, k->job, &k->kept->of[KEY_AGENT], why));
    TRY(tls_context_client(&k->store, KEY_STORE, k->job, &k->kept->of[KEY_STORE], why));
    return tls_context_client(&k->relay, KEY_RELAY, k->job, &k->kept->of[KEY_RELAY], why);
}

/* The worker store is at an address that node 0 names, perhaps behind NAT: any certificate of our CA may serve there. */
static int init_certificates(struct job_keys *k, const struct certificate_files *files, const char *host,
                             char why[CERTIFICATE_ERROR_SIZE])
{
    /* Neither sessions with the rendezvous nor links of nodes' stores are by the secret: both end at the rendezvous. */
    tls_context_free(steal_ptr(k->client));
    tls_context_free(steal_ptr(k->relay));
    TRY(tls_context_server_certified(&k->server, files, why));
    TRY(tls_context_client_certified(&k->client, KEY_AGENT, host, files, why));
    if (!k->has_secret)
        TRY(tls_context_client_certified(&k->store, KEY_STORE, NULL, files, why));
    return tls_context_client_certified(&k->relay, KEY_RELAY, NULL, files, why);
}

int job_keys_init(struct job_keys *k, const struct secret *secret, const struct certificate_files *files,
                  const char *job, const char *host, char why[CERTIFICATE_ERROR_SIZE])
{
    int r = begin_keys(k, job, why);

    k->is_settled = true;
    if (r == 0 && secret->bytes)
        r = init_secret(k, secret->bytes, secret->size, why);
    if (r == 0 && files)
        r = init_certificates(k, files, host, why);
    if (r < 0)
        job_keys_finish(k);
    return r;
}

int job_keys_init_workers(struct job_keys *k, const struct secret *key, const char *job,
                          char why[CERTIFICATE_ERROR_SIZE])
{
    int r = key->size == JOB_WORKERS_KEY_SIZE ? begin_keys(k, job, why) : -EINVAL;

    if (r == -EINVAL)
        (void)snprintf(why, CERTIFICATE_ERROR_SIZE, "the key of workers has another length");
    if (r < 0)
        return r;
    memcpy(k->kept->of[KEY_WORKER].bytes, key->bytes, KEY_SIZE);
    k->has_secret = k->is_settled = true;
    return 0;
}

int job_keys_init_munge(struct job_keys *k, const char *socket, const char *job,
                        char why[CERTIFICATE_ERROR_SIZE])
{
    TRY(begin_keys(k, job, why));
    k->by_munge = true;
    (void)snprintf(k->kept->munge.socket, sizeof(k->kept->munge.socket), "%s", socket); /* of that size */
    int r = random_fill(k->kept->munge.secret, sizeof(k->kept->munge.secret));
    if (r < 0)
        (void)snprintf(why, CERTIFICATE_ERROR_SIZE, "no random bytes: %s", strerror(-r)); /* fits */
    else
        r = init_secret(k, k->kept->munge.secret, sizeof(k->kept->munge.secret), why);
    if (r < 0)
        job_keys_finish(k);
    return r;
}

static void free_contexts(struct job_keys *k)
{
    tls_context_free(steal_ptr(k->client));
    tls_context_free(steal_ptr(k->store));
    tls_context_free(steal_ptr(k->relay));
    tls_context_free(steal_ptr(k->server));
}

int job_keys_renew(struct job_keys *k, const struct munge_secret *munge, char why[CERTIFICATE_ERROR_SIZE])
{
    free_contexts(k);
    k->kept->munge = *munge;
    k->is_settled = true;
    return init_secret(k, k->kept->munge.secret, sizeof(k->kept->munge.secret), why);
}

void job_keys_finish(struct job_keys *k)
{
    free_contexts(k);
    key_memory_free(k->kept, sizeof(*k->kept));
    *k = (struct job_keys){0};
}

/* Of agents, and of the stores of nodes, whose workers' keys are kept by the rendezvous. */
static int find_agent_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    const struct job_keys *k = data;

    if ((purpose != KEY_AGENT && purpose != KEY_RELAY) || strcmp(job, k->job) != 0)
        return 0;
    *ret = k->kept->of[purpose];
    return 1;
}

static int find_store_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    const struct job_keys *k = data;

    if (purpose != KEY_STORE || strcmp(job, k->job) != 0)
        return 0;
    *ret = k->kept->of[KEY_STORE];
    return 1;
}

struct server_security job_keys_of_rendezvous(struct job_keys *k, const struct server_exchange *exchange)
{
    return (struct server_security){
        .certified = k->server, .find_key = find_agent_key, .data = k, .require = true, .exchange = exchange};
}

struct server_security job_keys_of_store(struct job_keys *k)
{
    return (struct server_security){
        .certified = k->has_secret ? NULL : k->server, .find_key = find_store_key, .data = k, .fence = true};
}
