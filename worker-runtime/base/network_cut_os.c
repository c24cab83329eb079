#include "worker-runtime/base/network_cut_os.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/worker_memory.h"
#include "worker-runtime/base/env_os.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void network_cut_note(int rank)
{
    const struct worker_cut cut = {.from = (uint32_t)rank + 1, .pid = (uint32_t)getpid()};
    struct worker_cut before = {0};
    struct stat st;
    int fd = env_state_file();

    /* A file that groups have made room in (collective_record_os.c): a write beyond its end could exceed a limit of file size. */
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < WORKER_MEMORY_PAGE)
        return;
    (void)pthread_mutex_lock(&lock); /* cannot fail on a lock that exists */
    bool is_first = pread(fd, &before, sizeof(before), WORKER_CUT_AT) != sizeof(before) || before.from == 0 ||
                    before.pid != cut.pid;
    if (is_first)
        (void)!pwrite(fd, &cut, sizeof(cut), WORKER_CUT_AT); /* memory that is there */
    (void)pthread_mutex_unlock(&lock);
}
