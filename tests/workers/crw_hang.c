/*
 * A program on libcrw in which one rank hangs: crw_hang RANK. All make five all-reduces in the world; then that rank sleeps and
 * the others wait for it in a sixth. crw_hang RANK MS: it sleeps for so many milliseconds before each, without end;
 * crw_hang RANK MS LAST: all ranks from RANK to LAST sleep.
 */

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "worker-runtime/crw.h"

enum { STEPS = 5 };

static int run_slowly(struct crw_group *group, bool is_slow, long ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    int64_t one = 1;

    while (!is_slow || nanosleep(&pause, NULL) == 0)
        if (crw_all_reduce(group, &one, 1, CRW_I64, CRW_MAX) != 0)
            return 3;
    return 0;
}

int main(int argc, char **argv)
{
    struct crw_group *group;
    int64_t one = 1;

    if (argc < 2 || crw_init(NULL, 0, 0, &group) != 0)
        return 2;
    if (argc >= 3)
        return run_slowly(group,
                          crw_rank(group) >= atoi(argv[1]) && crw_rank(group) <= atoi(argv[argc > 3 ? 3 : 1]),
                          atol(argv[2]));
    for (int i = 0; i < STEPS; i++)
        if (crw_all_reduce(group, &one, 1, CRW_I64, CRW_MAX) != 0)
            return 3;
    if (crw_rank(group) == atoi(argv[1]))
        (void)sleep(100000); /* ended by a signal */
    return crw_all_reduce(group, &one, 1, CRW_I64, CRW_MAX) == 0 && crw_finish(group) == 0 ? 0 : 4;
}
