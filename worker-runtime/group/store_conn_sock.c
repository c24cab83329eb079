/*
 * A thin layer over the blocking client: when to connect, and what its results are called in crw.h.
 */

#include "worker-runtime/group/store_conn_sock.h"

#include "worker-runtime/base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void store_conn_init(struct store_conn *s, const char *host, uint16_t port, int timeout_ms)
{
    *s = (struct store_conn){.host = host, .port = port, .timeout_ms = timeout_ms, .connect_ms = timeout_ms};
    client_sock_init(&s->client);
    s->client.timeout_ms = timeout_ms;
}

void store_conn_set_interrupt(struct store_conn *s, int fd)
{
    s->client.wake_fd = fd;
}

void store_conn_finish(struct store_conn *s)
{
    client_sock_finish(&s->client);
}

static struct wire_span text_span(const char *text)
{
    return (struct wire_span){.data = (const uint8_t *)text, .size = strlen(text)};
}

/* The client's message is complete: it names the peer, the key and the time. */
static int store_conn_result(const struct store_conn *s, int r)
{
    const char *sentence = client_sock_error(&s->client);

    switch (r) {
    case 0:
        return 0;
    case CLIENT_E_TIMEOUT:
        return crw_fail(CRW_E_TIMEOUT, "%s", sentence);
    case CLIENT_E_INTERRUPTED:
        return crw_fail(CRW_E_PEER, "a peer failed while this rank waited for the worker store");
    default:
        return crw_fail(r < 0 ? r : CRW_E_STORE, "%s", sentence);
    }
}

static int store_conn_connect(struct store_conn *s)
{
    if (s->connected)
        return 0;
    if (!s->host[0])
        return crw_fail(CRW_E_ENVIRONMENT,
                        "MASTER_ADDR is not set, so there is no worker store; start the program "
                        "by crun or torchrun");
    int r = store_conn_result(s, client_sock_connect(&s->client, s->host, s->port, s->connect_ms));
    s->connected = r == 0;
    return r;
}

int store_conn_set(struct store_conn *s, const char *key, const void *value, size_t n_bytes)
{
    const struct wire_span span = {.data = value, .size = n_bytes};
    int r = store_conn_connect(s);

    if (r == 0)
        r = store_conn_result(s, client_sock_set(&s->client, text_span(key), span));
    /* A reply to anything shows that it was carried out. */
    return r == 0 ? store_conn_result(s, client_sock_ping(&s->client)) : r;
}

int store_conn_get(struct store_conn *s, const char *key, int timeout_ms, void **ret_value,
                   size_t *ret_n_bytes)
{
    struct wire_span span;

    TRY(store_conn_connect(s));
    TRY(store_conn_result(s, client_sock_get(&s->client, text_span(key), timeout_ms, &span)));
    char *copy = malloc(span.size + 1);
    if (!copy)
        return crw_fail_errno(-ENOMEM, "cannot hold the value of store key %s", key);
    if (span.size > 0)
        memcpy(copy, span.data, span.size);
    copy[span.size] = '\0';
    *ret_value = copy;
    *ret_n_bytes = span.size;
    return 0;
}

int store_conn_add(struct store_conn *s, const char *key, int64_t amount, int64_t *ret_value)
{
    TRY(store_conn_connect(s));
    return store_conn_result(s, client_sock_add(&s->client, text_span(key), amount, ret_value));
}

int store_conn_delete(struct store_conn *s, const char *key)
{
    bool deleted;

    TRY(store_conn_connect(s));
    return store_conn_result(s, client_sock_delete(&s->client, text_span(key), &deleted));
}

int store_conn_pause(struct store_conn *s, int pause_ms)
{
    int r = sock_wait(s->client.wake_fd, -1, 0, sock_deadline_ns(pause_ms));

    return r == CLIENT_E_TIMEOUT ? 0 : store_conn_result(s, r);
}
