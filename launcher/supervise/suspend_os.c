#include "launcher/supervise/suspend.h"

#include <signal.h>
#include <unistd.h>

#include "launcher/util/proc_stat_os.h"

static struct suspend_process describe(pid_t pid)
{
    struct suspend_process p = {.pid = pid};

    if (pid > 0) {
        p.group = getpgid(pid);
        p.session = getsid(pid);
    }
    return p;
}

bool suspend_is_possible(void)
{
    struct suspend_process line[SUSPEND_LINE_MAX] = {describe(getpid()), describe(getppid())};
    struct proc_stat stat;
    size_t n = 2;

    while (n < SUSPEND_LINE_MAX && line[n - 1].pid > 0 && proc_stat_read(line[n - 1].pid, &stat))
        line[n++] = describe(stat.parent);
    return suspend_will_stop(line, n);
}

bool suspend_self(void)
{
    sigset_t stop, pending;

    (void)sigemptyset(&stop); /* none of these can fail with such arguments */
    (void)sigaddset(&stop, SIGTSTP);
    (void)raise(SIGTSTP);
    (void)pthread_sigmask(SIG_UNBLOCK, &stop, NULL); /* returns after SIGCONT, or at once */
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    (void)sigpending(&pending);
    return sigismember(&pending, SIGCONT) == 1;
}
