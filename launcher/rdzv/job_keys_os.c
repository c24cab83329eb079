#include "launcher/rdzv/job_keys_os.h"

#include <stdio.h>
#include <string.h>

int job_keys_init(struct job_keys *k, const struct secret *secret, const char *job, char why[TLS_ERROR_SIZE])
{
    const char *reason;
    int r = 0;

    *k = (struct job_keys){.job = job};
    for (enum key_purpose p = 0; p < KEY_PURPOSE_COUNT && r == 0; p++)
        r = key_derive(&k->keys[p], secret->bytes, secret->size, p, p == KEY_ADMIN ? "" : job, &reason);
    if (r < 0) {
        (void)snprintf(why, TLS_ERROR_SIZE, "%s", reason);
        return r;
    }
    r = tls_context_client(&k->client, KEY_AGENT, job, &k->keys[KEY_AGENT], why);
    if (r == 0)
        r = tls_context_client(&k->store, KEY_STORE, job, &k->keys[KEY_STORE], why);
    return r < 0 ? r : tls_context_client(&k->relay, KEY_RELAY, job, &k->keys[KEY_RELAY], why);
}

void job_keys_finish(struct job_keys *k)
{
    tls_context_free(k->client);
    tls_context_free(k->store);
    tls_context_free(k->relay);
    key_erase(k, sizeof(*k));
}

static int find_agent_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    const struct job_keys *k = data;

    if (purpose != KEY_AGENT || strcmp(job, k->job) != 0)
        return 0;
    *ret = k->keys[KEY_AGENT];
    return 1;
}

static int find_store_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    const struct job_keys *k = data;

    if (purpose != KEY_STORE || strcmp(job, k->job) != 0)
        return 0;
    *ret = k->keys[KEY_STORE];
    return 1;
}

static int find_relay_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    const struct job_keys *k = data;

    if (purpose != KEY_RELAY || strcmp(job, k->job) != 0)
        return 0;
    *ret = k->keys[KEY_RELAY];
    return 1;
}

struct server_security job_keys_of_sealed_store(struct job_keys *k)
{
    return (struct server_security){
        .find_key = find_relay_key, .data = k, .require = true, .fence = true, .seal = true};
}

struct server_security job_keys_of_rendezvous(struct job_keys *k)
{
    return (struct server_security){.find_key = find_agent_key, .data = k, .require = true};
}

struct server_security job_keys_of_store(struct job_keys *k)
{
    return (struct server_security){.find_key = find_store_key, .data = k, .fence = true};
}
