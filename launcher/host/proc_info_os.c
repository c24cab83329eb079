#include "launcher/host/proc_info_os.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "launcher/util/proc_stat_os.h"
#include "launcher/util/read_file_os.h"

void proc_info_core_pattern(char *out, size_t out_size)
{
    (void)read_file_text(out, out_size, "/proc/sys/kernel/core_pattern"); /* "" when it fails */
    out[strcspn(out, "\n")] = '\0';
}

void proc_info_host_name(char *out, size_t out_size)
{
    *out = '\0';
    (void)gethostname(out, out_size - 1); /* stays "" if it fails, and is cut if it is too long */
    out[out_size - 1] = '\0';
}

void proc_info_sender(int pid, unsigned user, char *out, size_t out_size)
{
    char name[PROC_FILE_SIZE], of_user[32] = "";

    (void)proc_file_read(pid, name, "comm"); /* "" when the process has ended */
    name[strcspn(name, "\n")] = '\0';
    if (user != getuid())
        (void)snprintf(of_user, sizeof(of_user), " of user %u", user);
    (void)snprintf(out, out_size, "process %d%s%s%s%s", pid, *name ? " (" : "", name, *name ? ")" : "",
                   of_user);
}

void proc_info_stuck(int pid, int local_rank, char *out, size_t out_size)
{
    char where[PROC_FILE_SIZE], name[32] = "";
    struct proc_stat stat = {.state = '?'};

    (void)proc_stat_read(pid, &stat);          /* '?' stays when it fails */
    (void)proc_file_read(pid, where, "wchan"); /* "" when it fails */
    if (local_rank >= 0)
        (void)snprintf(name, sizeof(name), "local rank %d", local_rank);
    (void)snprintf(out, out_size, "process %d (%s) does not end on SIGKILL: state %c, in %s", pid,
                   *name ? name : stat.name, stat.state,
                   *where && *where != '0' ? where : "an unknown place");
}
