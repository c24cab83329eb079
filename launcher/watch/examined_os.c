#include "launcher/watch/examined_os.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/cleanup.h"
#include "launcher/util/folder_list_os.h"
#include "launcher/util/proc_stat_os.h"

static atomic_bool are_workers_suspended;

static bool is_stopped(char state)
{
    return state == 'T' || state == 't';
}

void examined_begin(struct examined *e, pid_t pid)
{
    struct proc_stat stat;

    *e = (struct examined){.pid = pid};
    if (proc_stat_read(pid, &stat) && !is_stopped(stat.state))
        e->start_ticks = stat.start_ticks;
}

/* One thread: whether it is traced, and whether it is stopped or has a SIGSTOP of its own (that of kill(2) is the process's). */
static void look_at_thread(pid_t pid, const char *thread, bool *is_traced, bool *has_stop)
{
    char text[PROC_FILE_SIZE];

    if (!proc_file_read(pid, text, "task/%.20s/status", thread))
        return; /* it has ended */
    *is_traced |= proc_file_number(text, "\nTracerPid:", 10) != 0;
    *has_stop |= strstr(text, "\nState:\tT") || proc_file_number(text, "\nSigPnd:", 16) >> (SIGSTOP - 1) & 1;
}

static bool is_left_stopped(pid_t pid)
{
    bool is_traced = false, has_stop = false;
    _cleanup_(folder_list_close) struct folder_list list;
    const char *name;

    if (folder_list_open(&list, "/proc/%d/task", (int)pid) != 0)
        return false;
    while ((name = folder_list_next(&list)))
        if (name[0] != '.')
            look_at_thread(pid, name, &is_traced, &has_stop);
    return has_stop && !is_traced;
}

bool examined_continue(const struct examined *e)
{
    struct proc_stat stat;

    if (atomic_load(&are_workers_suspended))
        return false;
    if (e->start_ticks && is_left_stopped(e->pid) && proc_stat_read(e->pid, &stat) &&
        stat.start_ticks == e->start_ticks)
        (void)kill(e->pid, SIGCONT); /* it may have ended */
    return true;
}

void examined_suspend(bool is_suspended)
{
    atomic_store(&are_workers_suspended, is_suspended);
}
