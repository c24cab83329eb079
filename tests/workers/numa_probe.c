/*
 * numa_probe ROOT ALLOWED N_WORKERS [VISIBLE_DEVICES]
 *
 * Prints, for a machine laid out below ROOT, what --numa-binding decides: "MODE LOCAL_RANK CPUS", or
 * "MODE LOCAL_RANK error: SENTENCE".
 */

#include <stdio.h>
#include <stdlib.h>

#include "launcher/host/numa_os.h"

#include "tests/support/c/cpu_list.h"

static void print_mode(const struct numa_topology *t, enum numa_mode mode, const char *name, int n_workers)
{
    for (int i = 0; i < n_workers; i++) {
        char error[NUMA_ERROR_SIZE], text[4096];
        struct numa_cpus cpus;

        if (numa_bind(t, mode, i, &cpus, error) != 0) {
            printf("%s %d error: %s\n", name, i, error);
            continue;
        }
        cpu_list_format(&cpus, text, sizeof(text));
        printf("%s %d %s\n", name, i, text);
    }
}

int main(int argc, char **argv)
{
    static const char *const modes[] = {"node", "socket", "exclusive", "core-complex"};
    char error[NUMA_ERROR_SIZE];
    struct numa_cpus allowed;
    struct numa_topology t;

    if (argc < 4 || !numa_cpus_parse(argv[2], &allowed))
        return 2;
    const struct numa_machine machine = {.root = argv[1],
                                         .allowed = &allowed,
                                         .visible_devices = argc > 4 ? argv[4] : NULL,
                                         .n_workers = atoi(argv[3]),
                                         .n_gpus_counted = getenv("GPUS_COUNTED") ? 1 : 0};
    if (numa_read(&machine, &t, error) != 0) {
        printf("error: %s\n", error);
        return 1;
    }
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        print_mode(&t, (enum numa_mode)(NUMA_NODE + i), modes[i], machine.n_workers);
    numa_finish(&t);
    return 0;
}
