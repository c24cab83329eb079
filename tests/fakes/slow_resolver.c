/*
 * Name servers that do not answer, for LD_PRELOAD: getaddrinfo() does not return while the file $SLOW_RESOLVER_HANGS exists.
 */

#include <dlfcn.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    const char *hangs = getenv("SLOW_RESOLVER_HANGS");

    if (!real)
        real = (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(
            RTLD_NEXT, "getaddrinfo");
    while (hangs && access(hangs, F_OK) == 0)
        (void)usleep(10000);
    return real(name, service, hints, ret);
}
