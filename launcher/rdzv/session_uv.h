#pragma once

/*
 * The session machine (rendezvous/session.h) on a libuv loop: it dials, speaks and listens by itself; what
 * concerns the workers and people is handed on.
 */

#include <uv.h>

#include "launcher/rdzv/resolver_uv.h"
#include "rendezvous/session.h"

struct death_notice;
struct session_uv;

struct session_uv_host {
    uv_loop_t *loop;
    const char *host; /* of the endpoint; lives as long as the session */
    uint16_t port;
    const struct resolver_addresses *addresses; /* of the endpoint; needed for the call only */
    /* START, STOP, DRAIN, PROGRESS, SAY, END. view: of START and PROGRESS, valid during the call. The
     * session may be stepped and destroyed from within. */
    void (*on_action)(void *data, enum session_action action, const struct session_view *view);
    void *data;
};

/* Starts at once. The config's endpoint text must live as long. Returns 0 or -errno. */
int session_uv_create(struct session_uv **ret, const struct session_uv_host *host,
                      const struct session_config *config);

/* An event of the worker group; its time is filled in. */
void session_uv_step(struct session_uv *s, struct session_event event);

const struct session *session_uv_machine(const struct session_uv *s);

/* What is to be said to the rendezvous if this process is killed. False: there is no connection now. */
bool session_uv_last_word(const struct session_uv *s, struct death_notice *ret);

/* What was said is still sent. Frees itself when its handles are closed. NULL is fine. */
void session_uv_destroy(struct session_uv *s);
