#include "launcher/util/signal_name.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* sigabbrev_np() is not in glibc before 2.32. */
static const char *const signal_names[] = {
    [SIGHUP] = "HUP",       [SIGINT] = "INT",   [SIGQUIT] = "QUIT",   [SIGILL] = "ILL",   [SIGTRAP] = "TRAP",
    [SIGABRT] = "ABRT",     [SIGBUS] = "BUS",   [SIGFPE] = "FPE",     [SIGKILL] = "KILL", [SIGUSR1] = "USR1",
    [SIGSEGV] = "SEGV",     [SIGUSR2] = "USR2", [SIGPIPE] = "PIPE",   [SIGALRM] = "ALRM", [SIGTERM] = "TERM",
    [SIGSTKFLT] = "STKFLT", [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",   [SIGSTOP] = "STOP", [SIGTSTP] = "TSTP",
    [SIGTTIN] = "TTIN",     [SIGTTOU] = "TTOU", [SIGURG] = "URG",     [SIGXCPU] = "XCPU", [SIGXFSZ] = "XFSZ",
    [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF", [SIGWINCH] = "WINCH", [SIGPOLL] = "POLL", [SIGPWR] = "PWR",
    [SIGSYS] = "SYS",
};

const char *signal_name(int signal, char out[SIGNAL_NAME_SIZE])
{
    const char *abbreviation =
        signal > 0 && (size_t)signal < ARRAY_SIZE(signal_names) ? signal_names[signal] : NULL;

    if (abbreviation)
        (void)snprintf(out, SIGNAL_NAME_SIZE, "SIG%s", abbreviation); /* fits, as does the next */
    else if (signal >= SIGRTMIN && signal <= SIGRTMAX)
        (void)snprintf(out, SIGNAL_NAME_SIZE, "SIGRTMIN+%d", signal - SIGRTMIN);
    else
        return NULL;
    return out;
}

int signal_number(const char *text, size_t n)
{
    for (int s = 1; s < 32; s++) {
        char name[SIGNAL_NAME_SIZE];

        if (signal_name(s, name) && strlen(name) == n && strncmp(name, text, n) == 0)
            return s;
    }
    return 0;
}
