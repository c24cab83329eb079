#include "launcher/host/machine_os.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/util/read_disk_os.h"
#include "base/err.h"
#include "base/time.h"

enum { SLURM_CONF_MAX = 1 << 20 };

int machine_count_cpus(void *unused)
{
    /* 8,192 CPUs; the call fails where the kernel has more. */
    cpu_set_t set[8];

    if (sched_getaffinity(0, sizeof(set), set) == 0)
        return CPU_COUNT_S(sizeof(set), set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

char *machine_slurm_conf(char *const *environment)
{
    const char *places[] = {envp_get(environment, "SLURM_CONF"), "/run/slurm/conf/slurm.conf",
                            "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"};
    size_t n;

    if (!envp_get(environment, "SLURM_JOB_ID"))
        return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        char *text = places[i] ? read_disk_start(places[i], SLURM_CONF_MAX, &n) : NULL;
        if (!text)
            continue;
        text[n] = '\0';
        return text;
    }
    return NULL;
}

void machine_uuid(char out[37])
{
    uint8_t b[16];

    /* Without getrandom() (early boot, a seccomp filter) it is unique, but not secret. */
    if (getrandom(b, sizeof(b), 0) != sizeof(b)) {
        uint64_t words[2] = {clock_read_ns(CLOCK_REALTIME), (uint64_t)getpid()};
        memcpy(b, words, sizeof(b));
    }
    b[6] = (uint8_t)((b[6] & 0x0F) | 0x40); /* version 4, random */
    b[8] = (uint8_t)((b[8] & 0x3F) | 0x80);
    (void)snprintf(out, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
                   b[15]);
}
