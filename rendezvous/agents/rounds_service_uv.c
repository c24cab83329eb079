/* The rounds as a service of the server: its state, its verbs, and what the process around the server may ask. */

#include <errno.h>

#include "base/err.h"
#include "base/time.h"
#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/server/client_owner_os.h"
#include "rendezvous/agents/rounds_disk_uv.h"
#include "rendezvous/agents/rounds_etcd_uv.h"
#include "rendezvous/agents/rounds_look_uv.h"
#include "rendezvous/agents/rounds_state_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"

static int open_state(struct rounds_shell *r, const struct server_rounds *config)
{
    int error = 0;

    if (config->state && etcd_url_is(config->state))
        error = rounds_etcd_open(&r->state, r, config->state, &config->etcd);
    else if (config->state)
        error = rounds_disk_open(&r->state, r, config->state, config->disk_limit_ms);
    r->leads = !rounds_state_is_shared(r->state);
    return error < 0 || !r->leads || !r->state ? error : r->state->kind->load(r->state, &r->core, boot_ns());
}

struct rounds_shell *rounds_shell_of(const struct server *s)
{
    return server_find_service(s, rounds_shell_destroy);
}

int rounds_shell_add(struct server *s, const struct server_rounds *config)
{
    struct rounds_shell *r = NULL;

    TRY(rounds_shell_create(&r, s, config));
    int error = open_state(r, config);
    if (error < 0) {
        rounds_shell_destroy(r);
        return error;
    }
    server_keep_places(s);
    if (config->max_jobs_each > 0)
        s->diag = client_owner_open(); /* without it the quota is one of all users of this machine */
    server_add_service(s, &(struct server_service){
                              .self = r,
                              .openings = {s->tls ? TLS_FIRST_BYTE : 0, FRAME_FIRST_BYTE},
                              .deadlines = {&r->pending_hello},
                              .start = rounds_shell_start,
                              .adopt = agent_conn_adopt,
                              .make_room = agents_make_room,
                              .run_turn = agents_shake_hands,
                              .is_busy = agents_wait_for_handshakes,
                              .write_metrics = rounds_shell_write_metrics,
                              .drain = rounds_shell_drain,
                              .stop = rounds_shell_stop,
                              .destroy = rounds_shell_destroy,
                          });
    return 0;
}

/* ---- for the process around the server ---- */

int server_advertise(struct server *s, const char *address)
{
    struct rounds_shell *r = rounds_shell_of(s);

    return r && rounds_state_is_shared(r->state) ? r->state->kind->advertise(r->state, address) : 0;
}

size_t server_n_nodes(const struct server *s)
{
    const struct rounds_shell *r = rounds_shell_of(s);

    return r ? r->core.n_nodes : 0;
}

void server_close_jobs(struct server *s, const char *reason)
{
    struct rounds_shell *r = rounds_shell_of(s);

    if (r)
        rounds_shell_step(r, &(struct rounds_event){.kind = ROUNDS_CLOSE, .reason = reason});
}

void server_close_all_jobs(struct server *s, const char *reason)
{
    struct rounds_shell *r = rounds_shell_of(s);

    if (r)
        r->closed_for = reason;
    server_close_jobs(s, reason);
}

void server_expect_nodes(struct server *s, unsigned n)
{
    struct rounds_shell *r = rounds_shell_of(s);

    if (r)
        rounds_shell_step(r, &(struct rounds_event){.kind = ROUNDS_EXPECT, .number = n});
}

int server_look(struct server *s, const struct look_request *request, struct buf *out)
{
    struct rounds_shell *shell = rounds_shell_of(s);
    int r = shell ? rounds_look(shell, request, SIZE_MAX, out) : -ENOENT;

    if (shell)
        rounds_shell_flush(shell); /* the agents are asked to report */
    return r;
}

void server_write_job_metrics(const struct server *s, struct metrics_text *m)
{
    const struct rounds_shell *r = rounds_shell_of(s);

    if (r)
        rounds_shell_write_job_metrics(r, m);
}
