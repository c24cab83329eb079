/*
 * A machine that lacks something for a moment, for LD_PRELOAD: in crun, the call number SCARCE_AT (from 1; 0: every one) of the function SCARCE
 * fails ("waitpid": a child never ends, not even by SIGKILL): "_Fork" and "socketpair" by errno EAGAIN and EMFILE, "open" of a worker's stdout.log by EMFILE.
 */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static bool lacks(const char *what)
{
    static int n_calls;
    const char *name = getenv("SCARCE");

    if (!name || strcmp(name, what) != 0 || strcmp(program_invocation_short_name, "crun") != 0)
        return false;
    int at = atoi(getenv("SCARCE_AT"));
    return at == 0 || ++n_calls == at;
}

pid_t _Fork(void)
{
    static pid_t (*real)(void);

    if (!real)
        real = (pid_t(*)(void))dlsym(RTLD_NEXT, "_Fork");
    if (!lacks("_Fork"))
        return real();
    errno = EAGAIN;
    return -1;
}

/* A process in state D. What crun adopts is waited for as usual. */
pid_t waitpid(pid_t pid, int *status, int options)
{
    static pid_t (*real)(pid_t, int *, int);

    if (!real)
        real = (pid_t(*)(pid_t, int *, int))dlsym(RTLD_NEXT, "waitpid");
    if (pid <= 0 || !lacks("waitpid"))
        return real(pid, status, options);
    while (!(options & WNOHANG))
        (void)pause();
    return 0;
}

int socketpair(int domain, int type, int protocol, int pair[2])
{
    static int (*real)(int, int, int, int[2]);

    if (!real)
        real = (int (*)(int, int, int, int[2]))dlsym(RTLD_NEXT, "socketpair");
    if (!lacks("socketpair"))
        return real(domain, type, protocol, pair);
    errno = EMFILE;
    return -1;
}

static bool is_log(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && strcmp(slash, "/stdout.log") == 0;
}

int open(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    va_list args;

    if (!real)
        real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (!is_log(path) || !lacks("open"))
        return real(path, flags, mode);
    errno = EMFILE;
    return -1;
}
