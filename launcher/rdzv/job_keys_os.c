#include "launcher/rdzv/job_keys_os.h"

#include <stdio.h>
#include <string.h>

int job_keys_init(struct job_keys *k, const struct secret *secret, const char *job, char why[TLS_ERROR_SIZE])
{
    const char *reason;
    int r;

    *k = (struct job_keys){.job = job};
    r = key_derive(&k->agent, secret->bytes, secret->size, KEY_AGENT, job, &reason);
    if (r < 0)
        (void)snprintf(why, TLS_ERROR_SIZE, "%s", reason);
    else
        r = tls_context_client(&k->client, KEY_AGENT, job, &k->agent, why);
    return r;
}

void job_keys_finish(struct job_keys *k)
{
    tls_context_free(k->client);
    key_erase(k, sizeof(*k));
}

static bool find_job_key(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    const struct job_keys *k = data;

    if (purpose != KEY_AGENT || strcmp(job, k->job) != 0)
        return false;
    *ret = k->agent;
    return true;
}

struct server_security job_keys_security(struct job_keys *k)
{
    return (struct server_security){.find_key = find_job_key, .data = k, .require = true};
}
