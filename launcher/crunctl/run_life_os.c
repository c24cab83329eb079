#include "launcher/crunctl/run_life_os.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launcher/util/read_file_os.h"

enum { START_FIELD = 20 /* behind the name of the process */, CLOCK_SLACK_S = 5, STAT_SIZE = 1024 };

static int64_t clock_seconds(clockid_t clock)
{
    struct timespec now = {0};

    (void)clock_gettime(clock, &now); /* both exist on every Linux */
    return now.tv_sec;
}

/* Since 1970; -1: not known. proc_pid_stat(5). */
static int64_t start_of_process(const char *stat)
{
    const char *at = strrchr(stat, ')');

    for (int i = 0; at && i < START_FIELD; i++)
        at = strchr(at + 1, ' ');
    if (!at)
        return -1;
    int64_t since_boot_s = (int64_t)(strtoull(at, NULL, 10) / (unsigned long long)sysconf(_SC_CLK_TCK));
    return clock_seconds(CLOCK_REALTIME) - clock_seconds(CLOCK_BOOTTIME) + since_boot_s;
}

enum history_life run_life_find(const struct history_run *run)
{
    char host[HISTORY_NAME_SIZE], path[64], stat[STAT_SIZE];

    if (gethostname(host, sizeof(host)) != 0 || strcmp(host, run->host) != 0)
        return HISTORY_LIFE_UNKNOWN;
    (void)snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)run->crun_pid); /* fits */
    if (!read_file_text(path, stat, sizeof(stat)))
        return HISTORY_LIFE_KILLED;
    const char *name = strchr(stat, '(');
    bool is_crun = name && strncmp(name, "(crun", 5) == 0;
    return is_crun && start_of_process(stat) <= run->started_s + CLOCK_SLACK_S ? HISTORY_LIFE_RUNS
                                                                               : HISTORY_LIFE_KILLED;
}
