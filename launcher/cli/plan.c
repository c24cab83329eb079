#include "launcher/cli/plan.h"

#include <stdio.h>
#include <string.h>

#include "launcher/cli/visible_devices.h"
#include "launcher/util/envp.h"
#include "launcher/util/template.h"
#include "base/err.h"
#include "proto/state_blocks.h"
#include "proto/worker_memory.h"
#include "proto/worker_notice.h"
#include "rendezvous/session/session_message.h"

/* ---- arguments ---- */

char *plan_substitute(const char *text, int local_rank)
{
    char number[16];
    const struct template_variable variable = {"local_rank", number};

    (void)snprintf(number, sizeof(number), "%d", local_rank); /* fits */
    return template_substitute(text, &variable, 1);
}

void plan_arguments(const struct plan_command *command, int local_rank, struct strlist *out)
{
    for (size_t i = 0; i < command->head.n_items; i++)
        strlist_add_copy(out, command->head.items[i]);
    if (command->script)
        strlist_add_owned(out, plan_substitute(command->script, local_rank));
    for (char *const *arg = command->args; *arg; arg++)
        strlist_add_owned(out, plan_substitute(*arg, local_rank));
}

/* ---- environment ---- */

bool plan_limits_threads(const struct plan *plan)
{
    return plan->local_world_size > 1 && !envp_get(plan->environment, "OMP_NUM_THREADS");
}

/* HIP prefers HIP_VISIBLE_DEVICES to CUDA_VISIBLE_DEVICES; an empty list does not count. As torchrun 2.15. */
static const char *visible_devices_name(const struct plan *plan)
{
    const char *hip = envp_get(plan->environment, "HIP_VISIBLE_DEVICES");

    return hip && *hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
}

static int add_virtual_device(const struct plan *plan, int local_rank, struct strlist *out)
{
    const char *name = visible_devices_name(plan);
    const char *visible = envp_get(plan->environment, name);
    const char *entry = NULL;
    size_t n = 0;

    if (!visible) {
        strlist_add(out, "CUDA_VISIBLE_DEVICES=%d", local_rank);
        return 0;
    }
    for (int i = 0; i <= local_rank; i++)
        if (!visible_devices_next(&visible, &entry, &n))
            return PLAN_E_DEVICES;
    strlist_add(out, "CUDA_VISIBLE_DEVICES=%.*s", (int)n, entry);
    if (strcmp(name, "CUDA_VISIBLE_DEVICES") != 0)
        strlist_add(out, "%s=%.*s", name, (int)n, entry);
    return 0;
}

static void add_error_file(const struct plan *plan, int local_rank, struct strlist *out)
{
    const char *mark = plan->has_flat_files ? "." : "/";

    if (plan->attempt_dir)
        strlist_add(out, "TORCHELASTIC_ERROR_FILE=%s%s%d%serror.json", plan->attempt_dir, mark, local_rank,
                    mark);
    else
        strlist_add(out, "TORCHELASTIC_ERROR_FILE=");
}

/* Variables set by crun. */
static int add_worker_variables(const struct plan *plan, int local_rank, struct strlist *out)
{
    const struct rank_assignment *place = plan->place;

    strlist_add(out, "LOCAL_RANK=%d", plan->virtual_local_rank ? 0 : local_rank);
    strlist_add(out, "RANK=%u", place->rank_base + (uint32_t)local_rank);
    strlist_add(out, "WORLD_SIZE=%u", place->world_size);
    strlist_add(out, "LOCAL_WORLD_SIZE=%d", plan->local_world_size);
    strlist_add(out, "GROUP_RANK=%u", place->group_rank);
    strlist_add(out, "GROUP_WORLD_SIZE=%u", place->group_world_size);
    strlist_add(out, "ROLE_NAME=%s", plan->role);
    strlist_add(out, "ROLE_RANK=%u", place->role_rank_base + (uint32_t)local_rank);
    strlist_add(out, "ROLE_WORLD_SIZE=%u", place->role_world_size);
    strlist_add(out, "MASTER_ADDR=%s", place->master_addr);
    strlist_add(out, "MASTER_PORT=%u", place->master_port);
    if (place->master_host[0])
        strlist_add(out, "CRUN_MASTER_HOST=%s", place->master_host);
    strlist_add(out, "TORCHELASTIC_RESTART_COUNT=%d", plan->restart_count);
    strlist_add(out, "TORCHELASTIC_MAX_RESTARTS=%d", plan->max_restarts);
    strlist_add(out, "TORCHELASTIC_RUN_ID=%s", plan->run_id);
    strlist_add(out, "TORCHELASTIC_USE_AGENT_STORE=%s", plan->worker_has_store ? "False" : "True");
    strlist_add(out, "TORCHELASTIC_SIGNALS_TO_HANDLE=%s", plan->signals);
    strlist_add(out, NOTICE_ENVIRONMENT "=%d", plan->notice_fd);
    strlist_add(out, NOTICE_GENERATION_ENVIRONMENT "=%u", plan->generation);
    strlist_add(out, "CRUN_SHUTDOWN_TIMEOUT=%d", plan->shutdown_timeout_s);
    if (place->instance)
        strlist_add(out, "CRUN_INSTANCE=%016llx", (unsigned long long)place->instance);
    if (plan->local_addr)
        strlist_add(out, "CRUN_LOCAL_ADDR=%s", plan->local_addr);
    if (plan->interface && !envp_get(plan->environment, "GLOO_SOCKET_IFNAME"))
        strlist_add(out, "GLOO_SOCKET_IFNAME=%s", plan->interface);
    if (plan->state_fd)
        strlist_add(out, WORKER_MEMORY_STATE_ENVIRONMENT "=%d", plan->state_fd);
    if (plan->blocks_fd)
        strlist_add(out, STATE_BLOCKS_ENVIRONMENT "=%d", plan->blocks_fd);
    if (plan->key_fd)
        strlist_add(out, WORKER_MEMORY_KEY_ENVIRONMENT "=%d", plan->key_fd);
    if (plan->key_fd && plan->seals)
        strlist_add(out, WORKER_MEMORY_SEAL_ENVIRONMENT "=1");
    add_error_file(plan, local_rank, out);
    if (!envp_get(plan->environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        strlist_add(out, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    if (plan_limits_threads(plan))
        strlist_add(out, "OMP_NUM_THREADS=1");
    return plan->virtual_local_rank ? add_virtual_device(plan, local_rank, out) : 0;
}

/* Variables of an outer crun: descriptors, address, key. */
static const char *const of_outer_crun[] = {"CRUN_SECRET_FD=",
                                            "CRUN_OUTPUT_FD=",
                                            "CRUN_ADMITTED=",
                                            "CRUN_INSTANCE=",
                                            "CRUN_LOCAL_ADDR=",
                                            "CRUN_MASTER_HOST=",
                                            WORKER_MEMORY_STATE_ENVIRONMENT "=",
                                            WORKER_MEMORY_CACHE_ENVIRONMENT "=",
                                            STATE_BLOCKS_ENVIRONMENT "=",
                                            WORKER_MEMORY_KEY_ENVIRONMENT "=",
                                            WORKER_MEMORY_SEAL_ENVIRONMENT "=",
                                            NULL};

int plan_environment(const struct plan *plan, int local_rank, struct strlist *out)
{
    TRY(add_worker_variables(plan, local_rank, out));

    size_t n_ours = out->n_items; /* inherited values are left out */
    for (char *const *e = plan->environment; *e; e++)
        if (!envp_has_name_of(out->items, n_ours, *e) && !envp_begins_with(*e, of_outer_crun))
            strlist_add_borrowed(out, *e);
    return 0;
}
