/*
 * LD_PRELOAD: a wall clock that is wrong by as many seconds as the file CRUN_TEST_SKEW_FILE has now, so that the clock can
 * also jump. With CRUN_TEST_SKEW_BOOTTIME the clock that counts suspensions of the machine jumps instead. The other clocks are as they were.
 */

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long skew(void)
{
    const char *path = getenv("CRUN_TEST_SKEW_FILE");
    char text[32] = "";
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    (void)close(fd); /* was read only */
    return n > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, clock, t);

    bool is_skewed = getenv("CRUN_TEST_SKEW_BOOTTIME")
                         ? clock == CLOCK_BOOTTIME
                         : clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;

    if (r == 0 && is_skewed)
        t->tv_sec += skew();
    return r;
}

time_t time(time_t *ret)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t); /* cannot fail for this clock */
    if (ret)
        *ret = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *ret, void *zone)
{
    struct timespec t;

    (void)zone;                              /* obsolete */
    (void)clock_gettime(CLOCK_REALTIME, &t); /* as above */
    *ret = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
    return 0;
}
