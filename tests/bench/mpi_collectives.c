/*
 * The collectives of collectives.c made with MPI, for hosts_bench.py, which compiles it with mpicc.
 *
 *     mpi_collectives SIZES CALLS-PER-SIZE      (two lists with commas between)
 *
 * One JSON object a line: the median of five batches, on the slowest rank. Sizes are those of the larger of two buffers, as
 * in collectives.c.
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 5, SIZES_MAX = 16 };

struct mpi_bench {
    char *in, *out;
    size_t bytes;
    int rank, n_ranks;
};

static void mpi_allreduce(const struct mpi_bench *b)
{
    MPI_Allreduce(MPI_IN_PLACE, b->in, (int)(b->bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void mpi_broadcast(const struct mpi_bench *b)
{
    MPI_Bcast(b->in, (int)b->bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void mpi_allgather(const struct mpi_bench *b)
{
    int part = (int)(b->bytes / (size_t)b->n_ranks);

    MPI_Allgather(b->in, part, MPI_BYTE, b->out, part, MPI_BYTE, MPI_COMM_WORLD);
}

static void mpi_reducescatter(const struct mpi_bench *b)
{
    MPI_Reduce_scatter_block(b->in, b->out, (int)(b->bytes / sizeof(float) / (size_t)b->n_ranks), MPI_FLOAT,
                             MPI_SUM, MPI_COMM_WORLD);
}

static const struct {
    const char *name;
    void (*call)(const struct mpi_bench *b);
} collectives[] = {{"allreduce", mpi_allreduce},
                   {"reducescatter", mpi_reducescatter},
                   {"allgather", mpi_allgather},
                   {"broadcast", mpi_broadcast}};

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double measure(const struct mpi_bench *b, void (*call)(const struct mpi_bench *), int n_calls)
{
    double batches[BATCHES + 1], slowest;

    for (int i = 0; i <= BATCHES; i++) { /* the first one does not count */
        double began;

        MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
        for (int k = 0; k < n_calls; k++)
            call(b);
        batches[i] = (MPI_Wtime() - began) / n_calls * 1e6;
    }
    qsort(batches + 1, BATCHES, sizeof(*batches), compare_times);
    MPI_Allreduce(&batches[1 + BATCHES / 2], &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int parse_list(const char *text, long values[SIZES_MAX])
{
    int n = 0;

    for (char *end; *text && n < SIZES_MAX; text = *end ? end + 1 : end)
        values[n++] = strtol(text, &end, 10);
    return n;
}

int main(int argc, char **argv)
{
    long sizes[SIZES_MAX], calls[SIZES_MAX];
    struct mpi_bench b;
    int n;

    MPI_Init(&argc, &argv);
    if (argc != 3 || (n = parse_list(argv[1], sizes)) == 0 || parse_list(argv[2], calls) != n)
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.n_ranks);
    for (size_t c = 0; c < sizeof(collectives) / sizeof(collectives[0]); c++)
        for (int i = 0; i < n; i++) {
            double time_us;

            b.bytes = (size_t)sizes[i];
            if (b.bytes < sizeof(float) * (size_t)b.n_ranks &&
                strstr("reducescatter allgather", collectives[c].name))
                b.bytes = sizeof(float) * (size_t)b.n_ranks; /* a number for each rank */
            b.in = calloc(1, b.bytes + sizeof(float));
            b.out = calloc(1, b.bytes + sizeof(float));
            if (!b.in || !b.out)
                MPI_Abort(MPI_COMM_WORLD, 1);
            time_us = measure(&b, collectives[c].call, (int)calls[i]);
            if (b.rank == 0)
                printf("{\"collective\": \"%s\", \"bytes\": %ld, \"time_us\": %.3f}\n", collectives[c].name,
                       sizes[i], time_us);
            free(b.in);
            free(b.out);
        }
    MPI_Finalize();
    return 0;
}
