#pragma once

/*
 * Requests to etcd (API v3) and their replies, as structs. etcd_json.h has them as JSON of etcd's gateway, etcd_client_os.h
 * sends them, and etcd_leader.h decides about them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum {
    ETCD_PREFIX_SIZE = 200, /* with the NUL, as the next */
    ETCD_KEY_SIZE = 300,
    ETCD_TEXT_SIZE = 256,
    ETCD_TOKEN_SIZE = 2048,
    ETCD_OPS_MAX = 100,        /* of one transaction; etcd has a limit of 128 */
    ETCD_REPLY_MAX = 48 << 20, /* bytes of JSON */
    ETCD_REQUEST_MAX =
        1000 << 10 /* bytes of all keys and values of one transaction; etcd has a limit of 1.5 MiB */
};

enum etcd_kind {
    ETCD_AUTHENTICATE, /* key: the user, end: the password */
    ETCD_GRANT,        /* ttl_s */
    ETCD_KEEPALIVE,    /* lease */
    ETCD_RANGE,        /* key, end, limit */
    ETCD_TXN, /* key, revision: if the key was modified last in that one (0: does not exist), all ops are carried out.
                          Else the reply has the key */
    ETCD_KIND_COUNT
};

enum etcd_op_kind { ETCD_PUT, ETCD_DELETE };

struct etcd_op {
    enum etcd_op_kind kind;
    char key[ETCD_KEY_SIZE], end[ETCD_KEY_SIZE]; /* DELETE: from key to end, without it; "": that key */
    struct buf value;
    int64_t lease; /* PUT: 0: none */
};

struct etcd_request {
    enum etcd_kind kind;
    char key[ETCD_KEY_SIZE], end[ETCD_KEY_SIZE];
    uint32_t limit; /* keys; 0: none */
    int64_t lease;
    uint32_t ttl_s;
    int64_t revision;
    struct etcd_op *ops; /* ETCD_OPS_MAX of them, or NULL */
    size_t n_ops, ops_bytes;
};

enum etcd_outcome {
    ETCD_OK,
    ETCD_REFUSED,  /* answered with an error: it was not carried out */
    ETCD_NOT_SENT, /* no member could be reached: it was not carried out */
    ETCD_UNKNOWN,  /* it may have been carried out, or may yet be */
    ETCD_OUTCOME_COUNT
};

struct etcd_pair {
    char key[ETCD_KEY_SIZE];
    int64_t mod_revision, lease;
    struct buf value;
};

struct etcd_reply {
    enum etcd_outcome outcome;
    int code;                   /* REFUSED: of gRPC */
    char error[ETCD_TEXT_SIZE]; /* not OK: a part of a sentence */
    int64_t revision;           /* of the whole store, at the answer */
    bool succeeded;             /* TXN */
    int64_t lease, ttl_s;       /* GRANT, KEEPALIVE: ttl_s 0: it has expired */
    char token[ETCD_TOKEN_SIZE];
    struct etcd_pair *pairs; /* RANGE; TXN that did not succeed */
    size_t n_pairs;
    bool more; /* RANGE: limit was reached */
};

/* Codes of gRPC, as far as they are distinguished. */
enum { ETCD_CODE_NOT_FOUND = 5, ETCD_CODE_UNAUTHENTICATED = 16 };

/* Frees what it holds; it is empty afterwards. */
void etcd_request_finish(struct etcd_request *r);
void etcd_reply_finish(struct etcd_reply *r);

/* Another op of a transaction, empty but for its key; NULL: ETCD_OPS_MAX are there, or memory is out. */
struct etcd_op *etcd_request_add(struct etcd_request *r, enum etcd_op_kind kind, const char *key);

/* Whether another value of n bytes fits. */
bool etcd_request_has_room(const struct etcd_request *r, size_t n);

/* A put of these bytes; false: there is no room, or memory is out. */
bool etcd_request_put(struct etcd_request *r, const char *key, const void *value, size_t n, int64_t lease);

/* It may be carried out twice, and its answer is short: neither a transaction nor a read of many keys. */
bool etcd_request_is_brief(const struct etcd_request *r);

/* Where etcd is: etcd://HOST:PORT,HOST:PORT/PREFIX. */
enum { ETCD_ENDPOINTS_MAX = 9, ETCD_HOST_SIZE = 256 };

struct etcd_url {
    char endpoints[ETCD_ENDPOINTS_MAX][ETCD_HOST_SIZE]; /* HOST:PORT, an IPv6 address in brackets */
    size_t n_endpoints;
    char prefix[ETCD_PREFIX_SIZE]; /* begins with "/", does not end with one */
};

/* Whether a text is meant as one. */
bool etcd_url_is(const char *text);

/* NULL, or what is wrong, as a part of a sentence. */
const char *etcd_url_parse(const char *text, struct etcd_url *ret);

/* Whether each of its members is named by a loopback address, or as localhost. */
bool etcd_url_is_local(const struct etcd_url *url);

/* Files and texts live as long as what is made with them; NULL: not used. */
struct etcd_access {
    const char *ca_file;              /* TLS: who may sign the members' certificates */
    const char *cert_file, *key_file; /* TLS: what this process shows */
    const char *user, *password;
};
