#pragma once

/*
 * Bodies of the agent session: session_message.h as JSON. See PROTOCOL.md, "Agent session", for examples.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/session/fields_json.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/session/agent_message_json.h"
#include "rendezvous/session/session_message.h"

enum { SESSION_JSON_ERROR_SIZE = 512 };

/* Each appends one whole frame (proto/frame.h); 0 or -ENOMEM, the buf then holds what it held. */
int session_json_put_hello(struct buf *out, const struct session_hello *hello);
int session_json_put_report(struct buf *out, const struct session_report *report);
int session_json_put_view(struct buf *out, const struct session_view *view);

/* A renewal of the lease, and its answer: the same number. */
int session_json_put_renew(struct buf *out, uint32_t number);
int session_json_put_renewed(struct buf *out, uint32_t number);

/* What an agent sent. */
enum session_json_kind {
    SESSION_JSON_HELLO,
    SESSION_JSON_REPORT,
    SESSION_JSON_RENEW,
    SESSION_JSON_LOOK,
    SESSION_JSON_STATUS,
    SESSION_JSON_AGENT_MESSAGE
};

struct session_json_message {
    enum session_json_kind kind;
    struct session_hello hello;         /* SESSION_JSON_HELLO */
    struct session_report report;       /* SESSION_JSON_REPORT */
    uint32_t renewal;                   /* SESSION_JSON_RENEW */
    struct look_request look;           /* SESSION_JSON_LOOK */
    struct look_piece piece;            /* SESSION_JSON_STATUS */
    struct agent_message agent_message; /* SESSION_JSON_AGENT_MESSAGE */
};

/* False: error is a sentence about what is wrong with the body; memory that ran out is one of the reasons. */
bool session_json_get_message(const uint8_t *body, size_t n, struct session_json_message *ret,
                              char error[SESSION_JSON_ERROR_SIZE]);
/* Whether a body is the answer to a renewal. */
bool session_json_get_renewed(const uint8_t *body, size_t n, uint32_t *ret);
bool session_json_get_view(const uint8_t *body, size_t n, struct session_view *ret,
                           char error[SESSION_JSON_ERROR_SIZE]);

/* For rounds_json.c, which writes some of the same. */
int session_json_add_cause(struct cJSON *object, const struct session_cause *cause);
int session_json_add_params(struct cJSON *object, const struct session_params *params);
bool session_json_read_cause(const struct cJSON *object, struct session_cause *ret,
                             char error[FIELDS_ERROR_SIZE]);
bool session_json_read_params(const struct cJSON *object, struct session_params *ret,
                              char error[FIELDS_ERROR_SIZE]);
