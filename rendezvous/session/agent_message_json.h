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

enum { AGENT_MESSAGE_TO_ALL = -1 };

struct agent_message {
    int32_t to;         /* group rank, or AGENT_MESSAGE_TO_ALL: all but the sender */
    int64_t generation; /* in which that is; in any other one the message is dropped */
};

/* Appends one whole frame, {"relay":TO,"generation":N,"NAME":JSON}. 0, -ENOMEM, or -EMSGSIZE; the buf then holds what it held. */
int agent_message_put(struct buf *out, const struct agent_message *head, const char *name, const char *json);

/* Whether a body begins as agent_message_put() writes it. */
bool agent_message_is_body(const uint8_t *body, size_t n);

/* For session_json.c, and for the receiver. */
bool agent_message_read(const struct cJSON *json, struct agent_message *ret);
