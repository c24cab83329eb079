/*
 * Memory for keys: what the kernel notes about it, that a forked child has none of it, and that it can be used.
 */

#include "proto/key_memory_os.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

enum { SIZE = 5000 };

/* The flags of the mapping that begins there, as in /proc/self/smaps: " rd wr ... dd ". */
static void read_flags(const void *at, char *ret, size_t size)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[200], begin[32];
    int is_ours = 0;

    assert_non_null(f);
    (void)snprintf(begin, sizeof(begin), "%lx-", (unsigned long)(uintptr_t)at);
    ret[0] = '\0';
    while (!ret[0] && fgets(line, sizeof(line), f)) {
        if (strncmp(line, begin, strlen(begin)) == 0)
            is_ours = 1;
        if (is_ours && strncmp(line, "VmFlags:", 8) == 0)
            (void)snprintf(ret, size, "%s", line + 8);
    }
    (void)fclose(f);
}

static void is_in_no_core_file(void **state)
{
    char flags[200];
    uint8_t *p = key_memory_new(SIZE);

    assert_non_null(p);
    for (int i = 0; i < SIZE; i++)
        assert_int_equal(p[i], 0);
    memset(p, 7, SIZE);
    read_flags(p, flags, sizeof(flags));
    assert_non_null(strstr(flags, " dd ")); /* gdb looks for it, too */
    assert_non_null(strstr(flags, " wf "));
    key_memory_free(p, SIZE);
    key_memory_free(NULL, SIZE);
}

static void a_child_has_none(void **state)
{
    uint8_t *p = key_memory_new(SIZE);
    int status;

    assert_non_null(p);
    memset(p, 7, SIZE);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(p[0] | p[SIZE - 1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(p[SIZE - 1], 7);
    key_memory_free(p, SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_in_no_core_file),
        cmocka_unit_test(a_child_has_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
