#include "tests/support/c/etcd_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The limits of etcd 3.4: operations of a transaction, and bytes of a request. */
enum { MODEL_OPS_MAX = 128, MODEL_BYTES_MAX = 1536 << 10 };

void etcd_model_init(struct etcd_model *m)
{
    *m = (struct etcd_model){.revision = 1};
}

void etcd_model_finish(struct etcd_model *m)
{
    for (size_t i = 0; i < m->n_keys; i++)
        buf_finish(&m->keys[i].value);
    free(m->keys);
    *m = (struct etcd_model){0};
}

/* The first key that is not below this one. */
static size_t lower_bound(const struct etcd_model *m, const char *key)
{
    size_t low = 0, high = m->n_keys;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (strcmp(m->keys[middle].key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct etcd_pair *etcd_model_find(const struct etcd_model *m, const char *key)
{
    size_t i = lower_bound(m, key);

    return i < m->n_keys && strcmp(m->keys[i].key, key) == 0 ? &m->keys[i] : NULL;
}

static bool is_in_range(const char *key, const char *from, const char *end)
{
    return end[0] == '\0' ? strcmp(key, from) == 0 : strcmp(key, from) >= 0 && strcmp(key, end) < 0;
}

static void fill_buf(struct buf *to, const struct buf *from)
{
    buf_reset(to);
    if (buf_size(from) > 0 && buf_append(to, buf_bytes(from), buf_size(from)) != 0)
        abort();
}

static void remove_range(struct etcd_model *m, const char *from, const char *end)
{
    size_t kept = 0;

    for (size_t i = 0; i < m->n_keys; i++)
        if (is_in_range(m->keys[i].key, from, end))
            buf_finish(&m->keys[i].value);
        else
            m->keys[kept++] = m->keys[i];
    m->n_keys = kept;
}

static void put(struct etcd_model *m, const struct etcd_op *op)
{
    size_t i = lower_bound(m, op->key);
    bool exists = i < m->n_keys && strcmp(m->keys[i].key, op->key) == 0;

    if (!exists && m->n_keys == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 32;
        m->keys = realloc(m->keys, m->capacity * sizeof(*m->keys));
        if (!m->keys)
            abort();
    }
    if (!exists) {
        memmove(&m->keys[i + 1], &m->keys[i], (m->n_keys++ - i) * sizeof(*m->keys));
        m->keys[i] = (struct etcd_pair){0};
        (void)snprintf(m->keys[i].key, sizeof(m->keys[i].key), "%s", op->key);
    }
    m->keys[i].mod_revision = m->revision;
    m->keys[i].lease = op->lease;
    fill_buf(&m->keys[i].value, &op->value);
    m->n_puts++;
}

/* ---- leases ---- */

static struct etcd_model_lease *find_lease(struct etcd_model *m, int64_t id)
{
    for (size_t i = 0; i < ETCD_MODEL_LEASES; i++)
        if (m->leases[i].id == id)
            return &m->leases[i];
    return NULL;
}

static void remove_lease(struct etcd_model *m, struct etcd_model_lease *l)
{
    size_t kept = 0, before = m->n_keys;

    for (size_t i = 0; i < m->n_keys; i++)
        if (m->keys[i].lease == l->id)
            buf_finish(&m->keys[i].value);
        else
            m->keys[kept++] = m->keys[i];
    m->n_keys = kept;
    m->revision += kept != before;
    l->id = 0;
}

void etcd_model_expire(struct etcd_model *m, uint64_t now_ns)
{
    for (size_t i = 0; i < ETCD_MODEL_LEASES; i++)
        if (m->leases[i].id != 0 && now_ns >= m->leases[i].until_ns)
            remove_lease(m, &m->leases[i]);
}

static void refuse(struct etcd_reply *r, int code, const char *text)
{
    r->outcome = ETCD_REFUSED;
    r->code = code;
    (void)snprintf(r->error, sizeof(r->error), "%s", text);
}

static void grant(struct etcd_model *m, uint32_t ttl_s, uint64_t now_ns, struct etcd_reply *ret)
{
    struct etcd_model_lease *l = find_lease(m, 0);

    if (!l)
        abort();
    l->id = ret->lease = ++m->n_leases;
    ret->ttl_s = ttl_s;
    l->ttl_ns = ttl_s * UINT64_C(1000000000);
    l->until_ns = now_ns + l->ttl_ns;
}

static void keep_alive(struct etcd_model *m, int64_t id, uint64_t now_ns, struct etcd_reply *ret)
{
    struct etcd_model_lease *l = find_lease(m, id);

    ret->lease = id;
    if (!l)
        return;
    l->until_ns = now_ns + l->ttl_ns;
    ret->ttl_s = (int64_t)(l->ttl_ns / 1000000000);
}

/* ---- reads and transactions ---- */

static void read_range(const struct etcd_model *m, const struct etcd_request *r, struct etcd_reply *ret)
{
    size_t limit = r->limit ? r->limit : SIZE_MAX;

    ret->pairs = calloc(m->n_keys + 1, sizeof(*ret->pairs));
    if (!ret->pairs)
        abort();
    for (size_t i = lower_bound(m, r->key); i < m->n_keys && is_in_range(m->keys[i].key, r->key, r->end);
         i++) {
        ret->more = ret->n_pairs == limit;
        if (ret->more)
            return;
        ret->pairs[ret->n_pairs] = m->keys[i];
        ret->pairs[ret->n_pairs].value = (struct buf){0};
        fill_buf(&ret->pairs[ret->n_pairs++].value, &m->keys[i].value);
    }
}

/* What etcd refuses of a transaction before it looks at any key. */
static const char *txn_fault(struct etcd_model *m, const struct etcd_request *r)
{
    size_t bytes = 0;

    for (size_t i = 0; i < r->n_ops; i++) {
        const struct etcd_op *a = &r->ops[i];

        bytes += strlen(a->key) + strlen(a->end) + buf_size(&a->value);
        if (a->kind == ETCD_PUT && a->lease != 0 && !find_lease(m, a->lease))
            return "etcdserver: requested lease not found";
        for (size_t j = 0; a->kind == ETCD_PUT && j < r->n_ops; j++)
            if (j != i && (r->ops[j].kind == ETCD_PUT ? strcmp(r->ops[j].key, a->key) == 0
                                                      : is_in_range(a->key, r->ops[j].key, r->ops[j].end)))
                return "etcdserver: duplicate key given in txn request";
    }
    if (r->n_ops > MODEL_OPS_MAX)
        return "etcdserver: too many operations in txn request";
    return bytes > MODEL_BYTES_MAX ? "etcdserver: request is too large" : NULL;
}

static void run_txn(struct etcd_model *m, const struct etcd_request *r, struct etcd_reply *ret)
{
    const struct etcd_pair *pair = etcd_model_find(m, r->key);
    const char *fault = txn_fault(m, r);

    if (fault) {
        refuse(ret, strstr(fault, "lease") ? ETCD_CODE_NOT_FOUND : 3, fault);
        return;
    }
    ret->succeeded = (pair ? pair->mod_revision : 0) == r->revision;
    if (!ret->succeeded) {
        struct etcd_request read = {.limit = 1};

        (void)snprintf(read.key, sizeof(read.key), "%s", r->key);
        read_range(m, &read, ret);
        return;
    }
    m->revision += r->n_ops > 0;
    for (size_t i = 0; i < r->n_ops; i++)
        if (r->ops[i].kind == ETCD_DELETE)
            remove_range(m, r->ops[i].key, r->ops[i].end);
    for (size_t i = 0; i < r->n_ops; i++)
        if (r->ops[i].kind == ETCD_PUT)
            put(m, &r->ops[i]);
}

void etcd_model_apply(struct etcd_model *m, const struct etcd_request *request, uint64_t now_ns,
                      struct etcd_reply *ret)
{
    *ret = (struct etcd_reply){0};
    switch (request->kind) {
    case ETCD_GRANT:
        grant(m, request->ttl_s, now_ns, ret);
        break;
    case ETCD_KEEPALIVE:
        keep_alive(m, request->lease, now_ns, ret);
        break;
    case ETCD_RANGE:
        read_range(m, request, ret);
        break;
    case ETCD_TXN:
        run_txn(m, request, ret);
        break;
    default:
        break;
    }
    ret->revision = m->revision;
}
