#include "rendezvous/etcd/etcd_json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "base/base64.h"
#include "rendezvous/etcd/etcd.h"
#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/session_message.h"

enum { HTTP_OK = 200, PAIRS_MAX = 100000 };

static const char *const paths[ETCD_KIND_COUNT] = {
    [ETCD_AUTHENTICATE] = "/v3/auth/authenticate",
    [ETCD_GRANT] = "/v3/lease/grant",
    [ETCD_KEEPALIVE] = "/v3/lease/keepalive",
    [ETCD_RANGE] = "/v3/kv/range",
    [ETCD_TXN] = "/v3/kv/txn",
};

const char *etcd_json_path(const struct etcd_request *request)
{
    return paths[request->kind];
}

/* ---- writing ---- */

static bool add_text(cJSON *to, const char *name, const char *text)
{
    return cJSON_AddStringToObject(to, name, text) != NULL;
}

static bool add_number(cJSON *to, const char *name, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%" PRId64, value);
    return add_text(to, name, text);
}

static bool add_bytes(cJSON *to, const char *name, const void *data, size_t n)
{
    _cleanup_free_ char *text = malloc(base64_size(n) + 1);

    if (!text)
        return false;
    base64_encode(data, n, text);
    return add_text(to, name, text);
}

static bool add_key(cJSON *to, const char *name, const char *key)
{
    return key[0] == '\0' || add_bytes(to, name, key, strlen(key));
}

static bool add_op(cJSON *list, const struct etcd_op *op)
{
    cJSON *item = fields_append_object(list);
    cJSON *part =
        item ? cJSON_AddObjectToObject(item, op->kind == ETCD_PUT ? "request_put" : "request_delete_range")
             : NULL;

    if (!part || !add_key(part, "key", op->key))
        return false;
    if (op->kind == ETCD_DELETE)
        return add_key(part, "range_end", op->end);
    return add_bytes(part, "value", buf_bytes(&op->value), buf_size(&op->value)) &&
           (op->lease == 0 || add_number(part, "lease", op->lease));
}

static bool add_txn(cJSON *json, const struct etcd_request *r)
{
    cJSON *compare = fields_append_object(cJSON_AddArrayToObject(json, "compare"));
    cJSON *success = cJSON_AddArrayToObject(json, "success");
    cJSON *failure = fields_append_object(cJSON_AddArrayToObject(json, "failure"));
    cJSON *read = failure ? cJSON_AddObjectToObject(failure, "request_range") : NULL;
    bool ok = compare && success && read && add_key(compare, "key", r->key) &&
              add_text(compare, "target", "MOD") && add_text(compare, "result", "EQUAL") &&
              add_number(compare, "mod_revision", r->revision) && add_key(read, "key", r->key);

    for (size_t i = 0; ok && i < r->n_ops; i++)
        ok = add_op(success, &r->ops[i]);
    return ok;
}

static bool add_request(cJSON *json, const struct etcd_request *r)
{
    switch (r->kind) {
    case ETCD_AUTHENTICATE:
        return add_text(json, "name", r->key) && add_text(json, "password", r->end);
    case ETCD_GRANT:
        return add_number(json, "TTL", r->ttl_s);
    case ETCD_KEEPALIVE:
        return add_number(json, "ID", r->lease);
    case ETCD_RANGE:
        return add_key(json, "key", r->key) && add_key(json, "range_end", r->end) &&
               (r->limit == 0 || add_number(json, "limit", r->limit));
    case ETCD_TXN:
        return add_txn(json, r);
    case ETCD_KIND_COUNT:
        break;
    }
    return false;
}

int etcd_json_put(struct buf *out, const struct etcd_request *request)
{
    _cleanup_json_ cJSON *json = cJSON_CreateObject();
    char *text = json && add_request(json, request) ? cJSON_PrintUnformatted(json) : NULL;
    int r = text ? buf_append(out, text, strlen(text)) : -ENOMEM;

    cJSON_free(text);
    return r;
}

/* ---- reading ---- */

static const cJSON *item_of(const cJSON *from, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(from, name);
}

/* A number, or one as text; 0 where it is missing, as the gateway leaves zeros out. */
static bool read_number(const cJSON *from, const char *name, int64_t *ret)
{
    const cJSON *item = item_of(from, name);
    char *end;

    *ret = 0;
    if (!item)
        return true;
    if (cJSON_IsNumber(item)) {
        *ret = fabs(item->valuedouble) < 9e15 ? (int64_t)item->valuedouble : 0;
        return fabs(item->valuedouble) < 9e15;
    }
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0')
        return false;
    errno = 0;
    *ret = strtoll(item->valuestring, &end, 10);
    return *end == '\0' && errno == 0;
}

static bool read_key(const cJSON *from, char ret[ETCD_KEY_SIZE])
{
    const cJSON *item = item_of(from, "key");
    _cleanup_(buf_finish) struct buf bytes = {0};
    bool ok = cJSON_IsString(item) && base64_decode(item->valuestring, &bytes) &&
              buf_size(&bytes) < ETCD_KEY_SIZE && buf_size(&bytes) > 0 &&
              !memchr(buf_bytes(&bytes), 0, buf_size(&bytes));

    if (ok) {
        memcpy(ret, buf_bytes(&bytes), buf_size(&bytes));
        ret[buf_size(&bytes)] = '\0';
    }
    return ok;
}

static bool read_pair(const cJSON *from, struct etcd_pair *ret)
{
    const cJSON *value = item_of(from, "value");

    return read_key(from, ret->key) && read_number(from, "mod_revision", &ret->mod_revision) &&
           read_number(from, "lease", &ret->lease) &&
           (!value || (cJSON_IsString(value) && base64_decode(value->valuestring, &ret->value)));
}

static bool read_pairs(const cJSON *range, struct etcd_reply *ret)
{
    const cJSON *list = item_of(range, "kvs"), *item;
    int n = cJSON_GetArraySize(list);

    ret->more = cJSON_IsTrue(item_of(range, "more"));
    if (!list)
        return true;
    if (!cJSON_IsArray(list) || n > PAIRS_MAX)
        return false;
    ret->pairs = calloc((size_t)n + 1, sizeof(*ret->pairs));
    if (!ret->pairs)
        return false;
    cJSON_ArrayForEach(item, list) if (!read_pair(item, &ret->pairs[ret->n_pairs++])) return false;
    return true;
}

static bool read_txn(const cJSON *json, struct etcd_reply *ret)
{
    const cJSON *first = cJSON_GetArrayItem(item_of(json, "responses"), 0);

    ret->succeeded = cJSON_IsTrue(item_of(json, "succeeded"));
    return ret->succeeded || read_pairs(item_of(first, "response_range"), ret);
}

static bool read_token(const cJSON *json, struct etcd_reply *ret)
{
    const cJSON *item = item_of(json, "token");

    if (!cJSON_IsString(item) || strlen(item->valuestring) >= sizeof(ret->token) ||
        strcspn(item->valuestring, "\r\n") != strlen(item->valuestring))
        return false;
    (void)strcpy(ret->token, item->valuestring);
    return true;
}

static bool read_lease(const cJSON *json, struct etcd_reply *ret)
{
    return read_number(json, "ID", &ret->lease) && read_number(json, "TTL", &ret->ttl_s);
}

static bool read_answer(unsigned kind, const cJSON *json, struct etcd_reply *ret)
{
    const cJSON *header = item_of(json, "header");

    if (!cJSON_IsObject(header) || !read_number(header, "revision", &ret->revision))
        return false;
    switch (kind) {
    case ETCD_AUTHENTICATE:
        return read_token(json, ret);
    case ETCD_GRANT:
        return read_lease(json, ret) && ret->lease != 0;
    case ETCD_KEEPALIVE:
        return read_lease(json, ret);
    case ETCD_RANGE:
        return read_pairs(json, ret);
    case ETCD_TXN:
        return read_txn(json, ret);
    default:
        return true;
    }
}

/* ---- errors ---- */

/* With these etcd has refused a request before it was proposed to the other members: OutOfRange, ResourceExhausted (its
 * quota), ... All others (Unavailable, DeadlineExceeded, Unknown, ...) leave open what became of it. */
static bool is_refusal(int code)
{
    return code == 3 || code == ETCD_CODE_NOT_FOUND || code == 7 || code == 8 || code == 9 || code == 11 ||
           code == 12 || code == ETCD_CODE_UNAUTHENTICATED;
}

static const char *text_of(const cJSON *item)
{
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static void read_error(const cJSON *json, int http_status, struct etcd_reply *ret)
{
    const cJSON *error = item_of(json, "error");
    const cJSON *part = cJSON_IsObject(error) ? error : json;
    const char *text = text_of(item_of(part, "message"));
    int64_t code = 0;

    if (!text)
        text = text_of(error);
    (void)(read_number(part, item_of(part, "grpc_code") ? "grpc_code" : "code", &code) || (code = 0));
    ret->code = code > 0 && code < 100 ? (int)code : 0;
    ret->outcome = is_refusal(ret->code) ? ETCD_REFUSED : ETCD_UNKNOWN;
    if (text && text[0] != '\0')
        text_copy(ret->error, sizeof(ret->error), text);
    else
        (void)snprintf(ret->error, sizeof(ret->error), "it answered with HTTP status %d", http_status);
    text_clean(ret->error); /* it is logged */
}

static void set_not_understood(struct etcd_reply *ret)
{
    etcd_reply_finish(ret);
    ret->outcome = ETCD_UNKNOWN;
    (void)snprintf(ret->error, sizeof(ret->error), "its answer is not one of etcd's gateway (API v3)");
}

void etcd_json_get(unsigned kind, int http_status, const uint8_t *body, size_t n, struct etcd_reply *ret)
{
    _cleanup_json_ cJSON *json = cJSON_ParseWithLength((const char *)body, n);
    const cJSON *result = item_of(json, "result"); /* of a stream */

    *ret = (struct etcd_reply){0};
    if (http_status != HTTP_OK || item_of(json, "error"))
        read_error(json, http_status, ret);
    else if (!read_answer(kind, cJSON_IsObject(result) ? result : json, ret))
        set_not_understood(ret);
}
