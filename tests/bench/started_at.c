/* A worker that prints "START rank seconds", the time of its start, and ends some seconds later: started_at [SECONDS] */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const char *rank = getenv("RANK");
    printf("START %s %lld.%09ld\n", rank ? rank : "-", (long long)now.tv_sec, now.tv_nsec);
    if (fflush(stdout) != 0)
        return 1;
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    return usleep((useconds_t)(seconds * 1e6)) == 0 ? 0 : 1;
}
