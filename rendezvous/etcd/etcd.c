#include "rendezvous/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"

void etcd_request_finish(struct etcd_request *r)
{
    for (size_t i = 0; i < r->n_ops; i++)
        buf_finish(&r->ops[i].value);
    free(r->ops);
    *r = (struct etcd_request){0};
}

void etcd_reply_finish(struct etcd_reply *r)
{
    for (size_t i = 0; i < r->n_pairs; i++)
        buf_finish(&r->pairs[i].value);
    free(r->pairs);
    *r = (struct etcd_reply){0};
}

struct etcd_op *etcd_request_add(struct etcd_request *r, enum etcd_op_kind kind, const char *key)
{
    if (!r->ops)
        r->ops = calloc(ETCD_OPS_MAX, sizeof(*r->ops));
    if (!r->ops || r->n_ops == ETCD_OPS_MAX)
        return NULL;
    struct etcd_op *op = &r->ops[r->n_ops++];
    *op = (struct etcd_op){.kind = kind};
    (void)snprintf(op->key, sizeof(op->key), "%s", key); /* keys are made below a prefix that leaves room */
    r->ops_bytes += sizeof(op->key);
    return op;
}

bool etcd_request_has_room(const struct etcd_request *r, size_t n)
{
    return r->n_ops < ETCD_OPS_MAX && r->ops_bytes + sizeof(r->ops[0].key) + n <= ETCD_REQUEST_MAX;
}

bool etcd_request_put(struct etcd_request *r, const char *key, const void *value, size_t n, int64_t lease)
{
    struct etcd_op *op = etcd_request_has_room(r, n) ? etcd_request_add(r, ETCD_PUT, key) : NULL;

    if (!op)
        return false;
    if (buf_append(&op->value, value, n) < 0) { /* or an empty value would be written */
        r->n_ops--;
        r->ops_bytes -= sizeof(op->key);
        return false;
    }
    op->lease = lease;
    r->ops_bytes += n;
    return true;
}

bool etcd_request_is_brief(const struct etcd_request *r)
{
    return r->kind != ETCD_TXN && (r->kind != ETCD_RANGE || r->end[0] == '\0');
}

/* ---- where it is ---- */

static const char scheme[] = "etcd://";
static const char default_port[] = ":2379";

bool etcd_url_is(const char *text)
{
    return strncmp(text, scheme, sizeof(scheme) - 1) == 0;
}

/* The port behind the host, or NULL; false: it is no HOST, HOST:PORT, [IPV6] or [IPV6]:PORT. */
static bool find_port(const char *text, const char **ret_port)
{
    const char *end = text[0] == '[' ? strchr(text, ']') : NULL, *colon = strchr(end ? end : text, ':');
    uint64_t port;

    *ret_port = colon;
    if (text[0] == '[' && (!end || (end[1] != '\0' && end[1] != ':')))
        return false;
    if (text[0] == '\0' || colon == text)
        return false;
    return !colon || decimal_parse(colon + 1, 1, UINT16_MAX, &port);
}

static const char *add_endpoint(struct etcd_url *url, const char *text, size_t n)
{
    char *to = url->endpoints[url->n_endpoints];
    const char *port;

    if (url->n_endpoints == ETCD_ENDPOINTS_MAX)
        return "it names more than 9 members";
    if (n + sizeof(default_port) > ETCD_HOST_SIZE)
        return "the name of a member is too long";
    memcpy(to, text, n);
    to[n] = '\0';
    if (strcspn(to, "@?#% \t\\\"'") != n || !find_port(to, &port))
        return "a member is not HOST:PORT";
    if (!port)
        memcpy(to + n, default_port, sizeof(default_port));
    url->n_endpoints++;
    return NULL;
}

static const char *set_prefix(struct etcd_url *url, const char *text)
{
    size_t n = strlen(text);

    while (n > 0 && text[n - 1] == '/')
        n--;
    if (n == 0)
        return "it has no /PREFIX for the keys behind the members";
    if (n >= sizeof(url->prefix))
        return "its prefix is too long";
    memcpy(url->prefix, text, n);
    url->prefix[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return "its prefix has other characters than printable ones of ASCII";
    return NULL;
}

const char *etcd_url_parse(const char *text, struct etcd_url *ret)
{
    const char *at = text + sizeof(scheme) - 1, *why = NULL;
    size_t n;

    *ret = (struct etcd_url){0};
    if (!etcd_url_is(text))
        return "it does not begin with etcd://";
    do {
        n = strcspn(at, ",/");
        why = add_endpoint(ret, at, n);
        at += n;
    } while (!why && *at++ == ',');
    return why ? why : set_prefix(ret, at - (at[-1] == '/' || at[-1] == '\0'));
}

static bool is_loopback(const char *endpoint)
{
    size_t n = endpoint[0] == '[' ? strcspn(endpoint, "]") + 1 : strcspn(endpoint, ":");

    if (n == 5 && strncmp(endpoint, "[::1]", n) == 0)
        return true;
    if (n == 9 && strncmp(endpoint, "localhost", n) == 0)
        return true;
    return strncmp(endpoint, "127.", 4) == 0 &&
           strspn(endpoint, "0123456789.") == n; /* no name such as 127.a.b */
}

bool etcd_url_is_local(const struct etcd_url *url)
{
    for (size_t i = 0; i < url->n_endpoints; i++)
        if (!is_loopback(url->endpoints[i]))
            return false;
    return true;
}
