/* Connected, or the key proved: done, without a callback. Refused, or no answer: again, until the time is up. */

#include "launcher/rdzv/probe_uv.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "launcher/rdzv/tcp_client_uv.h"

enum { DELAY_MS = 1000, REDIAL_MS = 200, TIMEOUT_MS = 4000, PROOF_TIMEOUT_MS = 20000 };

struct probe {
    struct probe_config config;
    struct tcp_client *client;
    uv_timer_t timer;
    uint64_t until_ms;
    unsigned n_dials;
    bool stopped;
    char host[256];
    char why[160];
};

static void probe_dial(struct probe *p);

static void on_probe_timer(uv_timer_t *timer)
{
    struct probe *p = timer->data;

    if (uv_now(p->config.loop) < p->until_ms) {
        probe_dial(p);
        return;
    }
    if (p->client && *tcp_client_trouble(p->client))
        (void)snprintf(p->why, sizeof(p->why), "the name cannot be looked up: %s",
                       tcp_client_trouble(p->client)); /* truncated if long */
    tcp_client_close(steal_ptr(p->client));
    p->config.on_failed(p->config.data, p->why);
}

static void start_probe_timer(struct probe *p, uint64_t ms)
{
    (void)uv_timer_start(&p->timer, on_probe_timer, ms, 0); /* fails only without a callback */
}

static void end_probe(struct probe *p)
{
    (void)uv_timer_stop(&p->timer); /* cannot fail on a timer that exists */
    tcp_client_close(steal_ptr(p->client));
}

/* With a key the store has proved the key to us now. Whether it has seen our proof is known by its notice that nothing follows. */
static void on_probe_connected(void *data)
{
    struct probe *p = data;

    if (!p->config.tls)
        end_probe(p);
}

static void on_probe_finished(void *data)
{
    end_probe(data);
}

static void on_probe_bytes(void *data, const uint8_t *bytes, size_t n)
{
    /* The probe sends no request, and a store sends nothing behind a proof. */
}

static void on_probe_lost(void *data, const char *why)
{
    struct probe *p = data;

    p->client = NULL;
    (void)snprintf(p->why, sizeof(p->why), "%s", why); /* truncated if long */
    start_probe_timer(p, REDIAL_MS);
}

static void probe_dial(struct probe *p)
{
    const struct tcp_client_config config = {.loop = p->config.loop,
                                             .host = p->host,
                                             .port = p->config.port,
                                             .turn = p->n_dials++,
                                             .tls = p->config.tls,
                                             .on_connected = on_probe_connected,
                                             .on_finished = on_probe_finished,
                                             .on_bytes = on_probe_bytes,
                                             .on_lost = on_probe_lost,
                                             .data = p};
    uint64_t now_ms = uv_now(p->config.loop);

    int r = tcp_client_dial(&p->client, &config);
    if (r)
        on_probe_lost(p, strerror(-r));
    else
        start_probe_timer(p, p->until_ms > now_ms ? p->until_ms - now_ms
                                                  : 0); /* there may be no answer at all */
}

static void on_probe_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void probe_stop(struct probe *p)
{
    if (!p || p->stopped)
        return;
    p->stopped = true;
    tcp_client_close(steal_ptr(p->client));
    uv_close((uv_handle_t *)&p->timer, on_probe_closed);
}

int probe_start(struct probe **ret, const struct probe_config *config)
{
    struct probe *p = calloc(1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    p->config = *config;
    p->config.host = NULL;
    (void)snprintf(p->host, sizeof(p->host), "%s", config->host); /* no host name is longer */
    (void)snprintf(p->why, sizeof(p->why), "no answer");          /* fits */
    p->until_ms = uv_now(config->loop) + (config->tls ? PROOF_TIMEOUT_MS : TIMEOUT_MS);
    (void)uv_timer_init(config->loop, &p->timer); /* cannot fail */
    p->timer.data = p;
    start_probe_timer(p, config->tls ? 0 : DELAY_MS);
    *ret = p;
    return 0;
}
