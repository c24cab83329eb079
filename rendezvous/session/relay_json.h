#pragma once

/*
 * Messages from one agent of a job to another one, or to all others, which the rendezvous forwards without understanding them
 * (PROTOCOL.md, "Messages between agents"). Pure.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct cJSON;

enum { RELAY_TO_ALL = -1 };

struct relay {
    int32_t to;         /* group rank, or RELAY_TO_ALL: all but the sender */
    int64_t generation; /* in which that is; in any other one the message is dropped */
};

/* Appends one whole frame, {"relay":TO,"generation":N,"NAME":JSON}. 0, -ENOMEM, or -EMSGSIZE; the buf then holds what it held. */
int relay_put(struct buf *out, const struct relay *relay, const char *name, const char *json);

/* Whether a body begins as relay_put() writes it. */
bool relay_is_body(const uint8_t *body, size_t n);

/* For session_json.c, and for the receiver. */
bool relay_read(const struct cJSON *json, struct relay *ret);
