/*
 * A group continues although a peer has died: crw_group_ready() and crw_group_rejoin().
 *
 *   1. A collective fails. The program calls crw_group_rejoin(), which waits for the launcher's decision
 *      (failure_detector_os.h).
 *   2. The launcher announces a new generation: everything of the old one is released, the group becomes one of the new
 *      generation, and joins through its store just as a new process does (group_os.c).
 *   3. Whatever fails there (another rank died) is waited out in the same way, for the generation after.
 *
 * Ways it fails: the launcher starts no further generation, or it decides nothing: there is no launcher, it does not
 * know of replacements, or it has seen no failure (a peer that hangs, or that ended with 0). The launcher decides
 * within milliseconds of a failure; after some seconds the wait ends.
 */

#include "worker-runtime/base/run_identity_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/group/group_os.h"

#include <errno.h>

int crw_group_ready(struct crw_group *group)
{
    NEED(group, CRW_E_ARGUMENT);
    if (group->members)
        return crw_fail(CRW_E_ARGUMENT, "only the group of all ranks can be formed again");
    if (group->inter_host) /* the launchers of several hosts do not know of it */
        return 0;
    failure_detector_send_ready(group->detector, group->env.rank);
    return 0;
}

int crw_group_restart_count(const struct crw_group *group)
{
    return group ? group->env.restart_count : 0;
}

/* Releases everything that belongs to one generation; also after a join that failed half-way. */
static void leave_generation(struct crw_group *group)
{
    group_finish_calls(group);
    failure_detector_remove_group(group->detector, &group->detected_group);
    shm_p2p_finish(&group->p2p);
    shm_finish(&group->shm);
    store_conn_finish(&group->store);
    group->shm = (struct shm){.fd = -1};
}

static int enter_generation(struct crw_group *group, const struct next_generation *next)
{
    group->env.restart_count += next->generation - group->env.generation; /* each was one */
    group->env.generation = next->generation;
    run_identity_set_generation(next->generation);
    group->env.master_port = next->port;
    failure_detector_renew(group->detector, next->generation);
    async_queue_init(&group->collectives, group);
    store_conn_init(&group->store, group->env.master_addr, group->env.master_port, group->timeout_ms);
    store_conn_set_interrupt(&group->store, failure_detector_failed_fd(group->detector));
    TRY(group_join_again(group));
    failure_detector_note_formed(group->detector);
    return 0;
}

/* Errors caused by a peer's death, or by the store that ended with it: wait for the launcher's next
 * generation instead of failing. */
static bool is_worth_waiting(int result)
{
    return result > 0 || result == -ECONNREFUSED || result == -ECONNRESET || result == -EPIPE;
}

int crw_group_rejoin(struct crw_group *group)
{
    struct next_generation next;
    int r;

    NEED(group, CRW_E_ARGUMENT);
    if (group->members)
        return crw_fail(CRW_E_ARGUMENT, "only the group of all ranks can be formed again");
    if (group->inter_host)
        return crw_fail(CRW_E_PEER, "a peer failed, and a group over several hosts is not formed again");
    do {
        TRY(failure_detector_await_generation(group->detector, &next));
        leave_generation(group);
        r = enter_generation(group, &next);
    } while (is_worth_waiting(r));
    return r;
}
