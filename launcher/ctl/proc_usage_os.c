#include "launcher/ctl/proc_usage_os.h"

#include <unistd.h>

#include "launcher/ctl/job_status.h"
#include "launcher/util/proc_stat_os.h"

void proc_usage_read(struct worker_status *w)
{
    struct proc_stat stat = {.state = 0};

    w->has_usage =
        w->pid > 0 && w->pid <= INT32_MAX && proc_stat_read((pid_t)w->pid, &stat) && !stat.has_ended;
    w->cpu_ms = (int64_t)(stat.cpu_ticks * 1000 / (uint64_t)sysconf(_SC_CLK_TCK));
    w->rss_kib = (int64_t)(stat.rss_pages * ((uint64_t)sysconf(_SC_PAGESIZE) / 1024));
}
