#include "launcher/crunctl/run_life_os.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "launcher/util/proc_stat_os.h"
#include "launcher/util/read_file_os.h"

enum { CLOCK_SLACK_S = 5, STAT_SIZE = 1024 };

/* Since 1970. */
static int64_t start_of_process(const struct proc_stat *stat)
{
    int64_t boot_s = (int64_t)((clock_read_ns(CLOCK_REALTIME) - boot_ns()) / 1000000000);

    return boot_s + (int64_t)(stat->start_ticks / (uint64_t)sysconf(_SC_CLK_TCK));
}

enum history_life run_life_find(const struct history_run *run)
{
    char host[HISTORY_NAME_SIZE], path[64], text[STAT_SIZE];
    struct proc_stat stat;

    if (gethostname(host, sizeof(host)) != 0 || strcmp(host, run->start.host) != 0)
        return HISTORY_LIFE_UNKNOWN;
    (void)snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)run->start.crun_pid); /* fits */
    if (!read_file_text(path, text, sizeof(text)) || !proc_stat_parse(text, &stat))
        return HISTORY_LIFE_KILLED;
    const char *name = strchr(text, '(');
    bool is_crun = name && strncmp(name, "(crun", 5) == 0;
    return is_crun && start_of_process(&stat) <= run->start.time_s + CLOCK_SLACK_S ? HISTORY_LIFE_RUNS
                                                                                   : HISTORY_LIFE_KILLED;
}
