#pragma once

/*
 * Requests and replies of etcd (etcd.h) as its gRPC gateway has them: JSON over HTTP, below /v3/, keys and values in base64,
 * 64-bit numbers as text. Errors are {"error":TEXT,"code":NUMBER} up to etcd 3.4, {"code":NUMBER,"message":TEXT} from 3.5 on,
 * and {"error":{"grpc_code":NUMBER,"message":TEXT}} in streams (keepalive).
 */

#include <stddef.h>
#include <stdint.h>

struct buf;
struct etcd_reply;
struct etcd_request;

/* "/v3/kv/range", ... */
const char *etcd_json_path(const struct etcd_request *request);

/* Appends the body. 0 or -ENOMEM. */
int etcd_json_put(struct buf *out, const struct etcd_request *request);

/* Reads the answer to a request of that kind. What is not understood, or says that etcd itself does not know, has the outcome
 * ETCD_UNKNOWN. etcd_reply_finish() frees what it holds. */
void etcd_json_get(unsigned kind, int http_status, const uint8_t *body, size_t n, struct etcd_reply *ret);
