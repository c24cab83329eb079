#include "worker-runtime/base/network_cut_os.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/worker_memory.h"
#include "base/lock_os.h"
#include "worker-runtime/base/env_os.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the record */

/* -1: none. A file that groups have made room in (collective_record_os.c): a write beyond its end could exceed a limit of file size. */
static int find_file(void)
{
    struct stat st;
    int fd = env_state_file();

    return fd >= 0 && fstat(fd, &st) == 0 && st.st_size >= WORKER_MEMORY_PAGE ? fd : -1;
}

/* The rank that this process has noted, and 1; 0: none. */
static uint32_t noted(int fd)
{
    struct worker_cut cut;
    bool is_ours =
        pread(fd, &cut, sizeof(cut), WORKER_CUT_AT) == sizeof(cut) && cut.pid == (uint32_t)getpid();

    return is_ours ? cut.from : 0;
}

/* In place of `before`, where that is what is there. */
static void replace(uint32_t before, uint32_t from)
{
    const struct worker_cut cut = {.from = from, .pid = (uint32_t)getpid()};
    int fd = find_file();

    if (fd < 0)
        return;
    hold_lock(&lock);
    if (noted(fd) == before)
        (void)!pwrite(fd, &cut, sizeof(cut), WORKER_CUT_AT); /* memory that is there */
}

void network_cut_note(int rank)
{
    replace(0, (uint32_t)rank + 1);
}

void network_cut_withdraw(int rank)
{
    replace((uint32_t)rank + 1, 0);
}
