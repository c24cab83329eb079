#include "launcher/rdzv/store_proof_uv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "launcher/rdzv/tcp_client_uv.h"

enum { RETRY_MS = 200, PATIENCE_MS = 20000, HOST_SIZE = 300 };

struct store_proof {
    struct store_proof_config config;
    struct tcp_client *client;
    uv_timer_t timer;
    uint64_t until_ms;
    char host[HOST_SIZE];
    bool proved;
};

static void on_proof_retry(uv_timer_t *timer);

static void report_proof_failure(struct store_proof *p, const char *why)
{
    p->config.on_failed(p->config.data, why);
}

static void on_proof_connected(void *data)
{
    /* The store has proved the key to us. Whether it has seen our proof is known by its notice that nothing follows. */
}

static void on_proof_finished(void *data)
{
    struct store_proof *p = data;

    p->proved = true;
}

static void on_proof_bytes(void *data, const uint8_t *bytes, size_t n)
{
    /* A store sends nothing here. */
}

static void on_proof_lost(void *data, const char *why)
{
    struct store_proof *p = data;

    p->client = NULL;
    if (p->proved)
        return;
    if (uv_now(p->config.loop) >= p->until_ms)
        report_proof_failure(p, why);
    else
        (void)uv_timer_start(&p->timer, on_proof_retry, RETRY_MS, 0); /* fails only without a callback */
}

static int dial_store(struct store_proof *p)
{
    const struct tcp_client_config config = {.loop = p->config.loop,
                                             .host = p->host,
                                             .port = p->config.port,
                                             .tls = p->config.tls,
                                             .on_connected = on_proof_connected,
                                             .on_finished = on_proof_finished,
                                             .on_bytes = on_proof_bytes,
                                             .on_lost = on_proof_lost,
                                             .data = p};

    return tcp_client_dial(&p->client, &config);
}

static void on_proof_retry(uv_timer_t *timer)
{
    struct store_proof *p = timer->data;
    int r = dial_store(p);

    if (r < 0) {
        p->client = NULL;
        report_proof_failure(p, strerror(-r));
    }
}

static void on_proof_closed(uv_handle_t *handle)
{
    free(handle->data);
}

int store_proof_start(struct store_proof **ret, const struct store_proof_config *config)
{
    struct store_proof *p = strlen(config->host) < HOST_SIZE ? calloc(1, sizeof(*p)) : NULL;

    if (!p)
        return strlen(config->host) < HOST_SIZE ? -ENOMEM : -ENAMETOOLONG;
    p->config = *config;
    p->config.host = NULL;
    (void)strcpy(p->host, config->host);
    p->until_ms = uv_now(config->loop) + PATIENCE_MS;
    (void)uv_timer_init(config->loop, &p->timer); /* cannot fail */
    p->timer.data = p;
    int r = dial_store(p);
    if (r < 0) {
        p->client = NULL;
        store_proof_stop(p);
        return r;
    }
    *ret = p;
    return 0;
}

void store_proof_stop(struct store_proof *p)
{
    if (!p)
        return;
    tcp_client_close(p->client);
    p->client = NULL;
    uv_close((uv_handle_t *)&p->timer, on_proof_closed);
}
