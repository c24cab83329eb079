/*
 * Makes the memory that ranks with the fake NCCL share: fake-nccl-memory FILE [FAULT RANK FROM]. FAULT is a number
 * of enum fake_fault, FROM how many all-reduces pass before it. Ranks find it by FAKE_NCCL_FILE.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fakes/fake_nccl.h"

enum { VERSION = 23007 };

int main(int argc, char **argv)
{
    pthread_mutexattr_t shared;
    struct fake_nccl *f;
    int fd;

    if (argc != 2 && argc != 5)
        return 2;
    fd = open(argv[1], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(*f)) < 0 ||
        (f = mmap(NULL, sizeof(*f), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        perror(argv[1]);
        return 1;
    }
    f->version = VERSION;
    if (argc == 5) {
        f->fault = (enum fake_fault)atoi(argv[2]);
        f->fault_rank = atoi(argv[3]);
        f->fault_from = (uint64_t)atoi(argv[4]);
        f->n_faults_left = 1;
    }
    if (pthread_mutexattr_init(&shared) || pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) ||
        pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST) || pthread_mutex_init(&f->lock, &shared))
        return 1;
    return 0;
}
