#include "rendezvous/daemon/compose_uv.h"

#include "base/err.h"
#include "rendezvous/keys/exchange_uv.h"
#include "rendezvous/keys/fence_uv.h"
#include "rendezvous/server/job_stores_uv.h"
#include "rendezvous/agents/rounds_uv.h"
#include "rendezvous/server/server_impl_uv.h"
#include "rendezvous/server/store_shell_uv.h"

static int add_rounds(struct server *s, const struct server_config *config)
{
    return config->rounds ? rounds_shell_add(s, config->rounds) : 0;
}

/* Nodes reach the keys of their job through a session that has proved its key. */
static int add_keys(struct server *s, const struct server_config *config)
{
    struct rounds_shell *rounds = rounds_shell_of(s);
    struct job_stores *stores;

    if (!rounds)
        return 0;
    TRY(job_stores_add(&stores, s));
    if (s->tls || s->security.is_private)
        rounds_shell_keep_keys(rounds, &(struct rounds_keys){.begin = job_stores_begin,
                                                             .end = job_stores_end,
                                                             .orphan = job_stores_orphan,
                                                             .adopt = job_stores_adopt,
                                                             .data = stores});
    return 0;
}

/* The first service that admits a socket gets it: the fence stands in front of the store. The keys are given to the rounds, which have
 * to be there. Any other order is as good. */
const struct server_part server_parts[SERVER_PARTS] = {
    {"fence", fence_shell_add}, {"store", store_shell_add},       {"rounds", add_rounds},
    {"keys", add_keys},         {"exchange", exchange_shell_add},
};

int server_compose(struct server **ret, uv_loop_t *loop, const struct server_config *config,
                   const struct server_part parts[SERVER_PARTS])
{
    struct server *s;
    int r = server_open(&s, loop, config);

    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < SERVER_PARTS; i++)
        r = parts[i].add(s, config);
    if (r < 0) {
        server_discard(s);
        return r;
    }
    server_start(s);
    *ret = s;
    return 0;
}

int server_create(struct server **ret, uv_loop_t *loop, const struct server_config *config)
{
    return server_compose(ret, loop, config, server_parts);
}
