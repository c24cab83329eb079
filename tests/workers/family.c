/*
 * A worker with relatives of every kind that a launcher finds hard to get rid of:
 *   - a child in its process group,
 *   - a child in a session of its own that ignores SIGTERM,
 *   - a daemon (forked twice, own session) that ignores SIGTERM, SIGHUP and SIGINT,
 *   - a traveller: every few milliseconds it forks and lets its child go on in its place.
 * All of them, and the worker itself, live until they are killed. Relatives are called "relative" in
 * /proc/PID/comm, so that a test can tell them from the ranks.
 *
 * Usage: family [deaf | exit CODE]   deaf: the worker ignores SIGTERM; exit: it ends at once, they stay
 */

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static _Noreturn void live(void)
{
    for (;;)
        (void)pause(); /* returns for a handled signal only, and there is none */
}

static void be_deaf(void)
{
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
}

static bool is_relative(void)
{
    if (fork() != 0)
        return false;
    (void)prctl(PR_SET_NAME, "relative");
    return true;
}

static void have_child(void)
{
    if (is_relative())
        live();
}

static void have_session(void)
{
    if (!is_relative())
        return;
    (void)setsid();
    be_deaf();
    live();
}

static void have_daemon(void)
{
    if (!is_relative())
        return;
    (void)setsid();
    be_deaf();
    if (fork() != 0)
        _exit(0);
    live();
}

static void have_traveller(void)
{
    if (!is_relative())
        return;
    be_deaf();
    for (;;) {
        (void)usleep(3000);
        if (fork() != 0)
            _exit(0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "deaf") == 0)
        be_deaf();
    have_child();
    have_session();
    have_daemon();
    have_traveller();
    if (argc > 2 && strcmp(argv[1], "exit") == 0) {
        (void)usleep(100000); /* until they are all deaf */
        return atoi(argv[2]);
    }
    live();
}
