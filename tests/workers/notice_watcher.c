/*
 * A worker that does nothing but tell when: notice_watcher FILE appends "start G RANK WORLD NS" to FILE, then
 * "notice G RANK KIND NS" for the first record on its notice socket, and "stop G RANK 0 NS" when SIGTERM comes. NS
 * is the monotonic clock, which is the same in all network namespaces.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "proto/worker_notice.h"

static int out;

static const char *from_environment(const char *name)
{
    const char *value = getenv(name);

    return value ? value : "-1";
}

static void tell(const char *what, const char *detail)
{
    char line[160];
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail for this clock */
    int n = snprintf(line, sizeof(line), "%s %s %s %s %lld\n", what, from_environment("CRUN_GENERATION"),
                     from_environment("RANK"), detail, (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    if (write(out, line, (size_t)n) != n)
        _exit(3);
}

static int watch_notices(int fd, bool *is_told)
{
    uint8_t record[64];
    struct worker_notice notice;
    char kind[16];

    ssize_t n = recv(fd, record, sizeof(record), 0);
    if (n <= 0)
        return n == 0 ? -1 : fd;
    if (!*is_told && worker_notice_decode(record, (size_t)n, &notice)) {
        (void)snprintf(kind, sizeof(kind), "%u", notice.kind); /* fits */
        tell("notice", kind);
        *is_told = true;
    }
    return fd;
}

int main(int argc, char **argv)
{
    sigset_t term;
    bool is_told = false;

    out = argc == 2 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (out < 0)
        return 2;
    (void)sigemptyset(&term); /* these cannot fail with such arguments */
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    int signals = signalfd(-1, &term, SFD_CLOEXEC);
    struct pollfd fds[] = {{.fd = atoi(from_environment("CRUN_NOTICE_FD")), .events = POLLIN},
                           {.fd = signals, .events = POLLIN}};
    tell("start", from_environment("WORLD_SIZE"));
    while (poll(fds, 2, -1) >= 0 || errno == EINTR) {
        if (fds[0].fd >= 0 && fds[0].revents)
            fds[0].fd = watch_notices(fds[0].fd, &is_told);
        if (fds[1].revents) {
            tell("stop", "0");
            return 0;
        }
    }
    return 1;
}
