#include "launcher/ctl/proc_usage_os.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launcher/util/read_file_os.h"

bool proc_usage_read(int64_t pid, struct proc_usage *ret)
{
    char path[64], text[1024];
    long long user, system, pages;
    char state;

    (void)snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid); /* fits */
    if (pid <= 0 || !read_file_text(path, text, sizeof(text)))
        return false;
    const char *fields = strrchr(text, ')'); /* the name before it may have anything in it */
    if (!fields ||
        sscanf(fields + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lld %lld %*d %*d %*d %*d %*d %*d %*u %*u %lld",
               &state, &user, &system, &pages) != 4)
        return false;
    ret->cpu_ms = (user + system) * 1000 / sysconf(_SC_CLK_TCK);
    ret->rss_kib = pages * (sysconf(_SC_PAGESIZE) / 1024);
    return state != 'Z' && state != 'X';
}
