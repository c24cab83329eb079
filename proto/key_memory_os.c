#include "proto/key_memory_os.h"

#include <sys/mman.h>

#include "proto/key_openssl.h"

void *key_memory_new(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    /* A kernel without one of these still writes no core file of a process that secret_hide_process() was called in. */
    (void)madvise(p, n, MADV_DONTDUMP);
    (void)madvise(p, n, MADV_WIPEONFORK);
    return p;
}

void key_memory_free(void *p, size_t n)
{
    if (!p)
        return;
    key_erase(p, n);
    (void)munmap(p, n); /* fails only for an address that is not ours */
}
