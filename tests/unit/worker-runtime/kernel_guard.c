/*
 * The emulation's guarded memory: queued work may use it, the host may not, and nothing may use what lies behind it.
 */

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/support/c/cmocka_fixed.h"

enum { N_BYTES = 1024 };

static unsigned char *new_memory(void)
{
    void *memory;
    assert_int_equal(cudaMalloc(&memory, N_BYTES), cudaSuccess);
    return memory;
}

/* In a child, because it may be the end. */
static bool can_read(const volatile unsigned char *at)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer would report it */
        (void)*at;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGSEGV);
    return WIFEXITED(status);
}

static void the_host_cannot_touch_it(void **state)
{
    unsigned char *memory = new_memory();
    assert_false(can_read(memory));
    assert_false(can_read(memory + N_BYTES - 1));
    assert_false(can_read(memory + N_BYTES));
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

static void queued_work_can(void **state)
{
    static const unsigned char from[N_BYTES] = {1, 2, 3};
    unsigned char *memory = new_memory(), to[N_BYTES];
    assert_int_equal(cudaMemcpy(to, memory, N_BYTES, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(to[N_BYTES - 1], 0xff);
    assert_int_equal(cudaMemcpy(memory, from, N_BYTES, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, memory, N_BYTES, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_memory_equal(to, from, N_BYTES);
    assert_false(can_read(memory));
    assert_int_equal(cudaFree(memory), cudaSuccess);
}

static void pinned_memory_stays_open(void **state)
{
    void *memory;
    assert_int_equal(cudaHostAlloc(&memory, N_BYTES, cudaHostAllocMapped), cudaSuccess);
    assert_true(can_read(memory));
    assert_int_equal(cudaFreeHost(memory), cudaSuccess);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_cannot_touch_it),
        cmocka_unit_test(queued_work_can),
        cmocka_unit_test(pinned_memory_stays_open),
    };
    cuda_host_guard_memory();
    return cmocka_run_group_tests_name("kernel_guard", tests, NULL, NULL);
}
