#include "launcher/ctl/proc_usage_os.h"

#include <unistd.h>

#include "launcher/util/proc_stat_os.h"

bool proc_usage_read(int64_t pid, struct proc_usage *ret)
{
    struct proc_stat stat;

    if (pid <= 0 || pid > INT32_MAX || !proc_stat_read((pid_t)pid, &stat))
        return false;
    ret->cpu_ms = (int64_t)(stat.cpu_ticks * 1000 / (uint64_t)sysconf(_SC_CLK_TCK));
    ret->rss_kib = (int64_t)(stat.rss_pages * ((uint64_t)sysconf(_SC_PAGESIZE) / 1024));
    return !stat.has_ended;
}
