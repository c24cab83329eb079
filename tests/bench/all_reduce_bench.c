/*
 * How long an all_reduce of the ranks of one host takes: forks the ranks itself, so that neither launcher
 * nor store is in the figures.
 *
 *     all_reduce_bench [RANKS [SECONDS_PER_SIZE]]
 *
 * A line for each size: bytes, microseconds where data lies in an arena, microseconds where it does not.
 * The figure is the median of rounds; a round repeats for at least a millisecond, and all ranks begin it
 * together.
 */

#include "worker-runtime/shm/shm_collectives_os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/clock.h"

enum { ROUNDS_MAX = 1000, TIMEOUT_MS = 60000 };

static const size_t sizes[] = {4, 64, 1024, 2048, 4096, 8192, 65536, 900904, 4u << 20, 26000000, 32u << 20};

static void must(int r)
{
    if (r != 0) {
        fprintf(stderr, "all_reduce_bench: %s\n", crw_error_message());
        exit(1);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double run_round(struct shm *shm, float *data, size_t count, int repeats)
{
    double began_s;

    must(shm_barrier(shm));
    began_s = now_s();
    for (int i = 0; i < repeats; i++)
        must(shm_all_reduce(shm, data, count, CRW_F32, CRW_AVG));
    return (now_s() - began_s) / repeats;
}

/* Rank 0 decides how often, so that all do the same. */
static double measure(struct shm *shm, float *data, size_t count, double seconds)
{
    static double rounds[ROUNDS_MAX];
    int64_t plan[2];
    double once_s;

    for (size_t i = 0; i < count; i++)
        data[i] = 1;
    once_s = run_round(shm, data, count, 10);
    plan[0] = once_s < 1e-3 ? (int64_t)(1e-3 / once_s) + 1 : 1;
    plan[1] = (int64_t)(seconds / (once_s * (double)plan[0])) + 3;
    if (plan[1] > ROUNDS_MAX)
        plan[1] = ROUNDS_MAX;
    must(shm_broadcast(shm, plan, sizeof(plan), 0));
    for (int64_t i = 0; i < plan[1]; i++)
        rounds[i] = run_round(shm, data, count, (int)plan[0]);
    qsort(rounds, (size_t)plan[1], sizeof(*rounds), compare);
    return rounds[plan[1] / 2] * 1e6;
}

static void run_rank(int fd, int rank, int world_size, double seconds)
{
    size_t largest = sizes[sizeof(sizes) / sizeof(sizes[0]) - 1];
    float *heap = malloc(largest), *arena;
    struct shm_head *head;
    struct shm shm;

    must(shm_map_memory(fd, world_size, &head));
    must(shm_init(&shm, fd, head, true, rank, world_size, TIMEOUT_MS));
    must(shm_alloc(&shm, largest, (void **)&arena));
    if (rank == 0)
        printf("%12s %12s %12s   (%d ranks, microseconds)\n", "bytes", "arena", "elsewhere", world_size);
    for (size_t i = 0; heap && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double in_arena = measure(&shm, arena, sizes[i] / 4, seconds);
        double elsewhere = measure(&shm, heap, sizes[i] / 4, seconds);

        if (rank == 0)
            printf("%12zu %12.2f %12.2f\n", sizes[i], in_arena, elsewhere);
    }
    free(heap);
    shm_finish(&shm);
}

int main(int argc, char **argv)
{
    int world_size = argc > 1 ? atoi(argv[1]) : 2, fd, status;
    double seconds = argc > 2 ? atof(argv[2]) : 0.3;

    if (world_size < 1 || world_size > 256 || seconds <= 0) {
        fprintf(stderr, "usage: %s [RANKS [SECONDS_PER_SIZE]]\n", argv[0]);
        return 2;
    }
    must(shm_create_memory(world_size, &fd));
    for (int rank = 1; rank < world_size; rank++) {
        if (fork() == 0) {
            run_rank(fd, rank, world_size, seconds);
            return 0;
        }
    }
    run_rank(fd, 0, world_size, seconds);
    while (wait(&status) > 0)
        if (status != 0)
            return 1;
    return 0;
}
