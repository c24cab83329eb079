#include "launcher/cli/scheduler_grace.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>

#include "launcher/util/envp.h"
#include "launcher/cli/options.h"
#include "launcher/cli/slurm.h"

enum { SCHEDULER_DEFAULT_S = 30 }; /* KillWait of Slurm, terminationGracePeriodSeconds of Kubernetes */

static void take_kill_wait(void *data, const char *value, size_t n)
{
    if (n > 0 && value[0] >= '0' && value[0] <= '9')
        *(int *)data = atoi(value);
}

/* The last one counts, as in Slurm. -1: there is none. */
static int kill_wait(const char *conf)
{
    int found = -1;

    slurm_each_setting(conf, "KillWait=", take_kill_wait, &found);
    return found;
}

int scheduler_grace_find(char *const *environment, const char *slurm_conf, struct scheduler_grace *ret)
{
    const char *seconds_text = envp_get(environment, "CRUN_GRACE_SECONDS");
    long long seconds;

    *ret = (struct scheduler_grace){0};
    if (seconds_text) {
        if (!options_int(seconds_text, &seconds) || seconds <= 0 || seconds > INT_MAX)
            return GRACE_E_BAD;
        *ret = (struct scheduler_grace){
            .seconds = (int)seconds, .is_certain = true, .source = "CRUN_GRACE_SECONDS"};
    } else if (envp_get(environment, "SLURM_JOB_ID")) {
        int wait = slurm_conf ? kill_wait(slurm_conf) : -1;
        *ret = (struct scheduler_grace){.seconds = wait > 0 ? wait : SCHEDULER_DEFAULT_S,
                                        .is_certain = wait > 0,
                                        .source = "KillWait of Slurm"};
    } else if (envp_get(environment, "KUBERNETES_SERVICE_HOST")) {
        *ret = (struct scheduler_grace){.seconds = SCHEDULER_DEFAULT_S,
                                        .source = "terminationGracePeriodSeconds of Kubernetes"};
    }
    return 0;
}

int scheduler_grace_timeout_max(const struct scheduler_grace *grace)
{
    if (grace->seconds == 0)
        return INT_MAX;
    int reserve = grace->seconds / 3 < GRACE_RESERVE_MAX_S ? grace->seconds / 3 : GRACE_RESERVE_MAX_S;
    int max = grace->seconds - (reserve > 0 ? reserve : 1);
    return max > 0 ? max : 1;
}
