/*
 * Name servers that do not answer, for LD_PRELOAD: getaddrinfo() does not return while the file $SLOW_RESOLVER_HANGS exists. A
 * process whose destructors run while a thread is inside makes the file $SLOW_RESOLVER_ENDED.
 */

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_uint n_inside;

__attribute__((destructor)) static void note_end(void)
{
    const char *ended = getenv("SLOW_RESOLVER_ENDED");

    if (ended && n_inside > 0)
        (void)close(open(ended, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    const char *hangs = getenv("SLOW_RESOLVER_HANGS");

    if (!real)
        real = (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(
            RTLD_NEXT, "getaddrinfo");
    n_inside++;
    while (hangs && access(hangs, F_OK) == 0)
        (void)usleep(10000);
    n_inside--;
    return real(name, service, hints, ret);
}
