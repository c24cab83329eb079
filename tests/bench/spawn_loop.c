/*
 * The least a launcher can do: starts N times a program with posix_spawn() and waits for all.
 * Usage: spawn_loop [-m] N PROGRAM [ARGUMENT ...]
 *
 * -m prints the largest resident set among the programs in KiB. (A large parent would spoil that figure: a
 * process inherits its parent's peak across fork and exec. This one is small.)
 */

#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
    bool tell_memory = argc > 1 && strcmp(argv[1], "-m") == 0;
    int failed = 0, status;

    argv += tell_memory;
    argc -= tell_memory;
    if (argc < 3) {
        (void)fprintf(stderr, "usage: spawn_loop [-m] N PROGRAM [ARGUMENT ...]\n");
        return 2;
    }
    for (int i = 0; i < atoi(argv[1]); i++) {
        pid_t pid;
        if (posix_spawn(&pid, argv[2], NULL, NULL, argv + 2, environ) != 0)
            return 1;
    }
    while (wait(&status) > 0)
        failed |= status != 0;
    struct rusage usage;
    if (tell_memory && getrusage(RUSAGE_CHILDREN, &usage) == 0)
        printf("%ld\n", usage.ru_maxrss);
    return failed;
}
