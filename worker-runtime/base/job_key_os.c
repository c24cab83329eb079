#include "worker-runtime/base/job_key_os.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/key_openssl.h"
#include "proto/worker_memory.h"
#include "worker-runtime/base/env_os.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/crw.h"

enum { SEALS = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };

/* A file that another process can still change is no key. */
static bool read_sealed(int fd, struct secret_key *ret)
{
    uint8_t bytes[KEY_SIZE + 1];
    int seals = fcntl(fd, F_GET_SEALS);
    bool ok = seals >= 0 && (seals & SEALS) == SEALS && pread(fd, bytes, sizeof(bytes), 0) == KEY_SIZE;

    if (ok)
        memcpy(ret->bytes, bytes, KEY_SIZE);
    key_erase(bytes, sizeof(bytes));
    return ok;
}

static int fail_without_key(void)
{
    const char *own = getenv("CRW_ENCRYPT");

    return crw_fail(CRW_E_ENVIRONMENT,
                    "%s is 1, and the job has no key (CRUN_KEY_FD) to encrypt with: give all nodes a "
                    "secret (crun --secret-file), or make CRW_ENCRYPT 0 on all of them",
                    own && own[0] ? "CRW_ENCRYPT" : WORKER_MEMORY_SEAL_ENVIRONMENT);
}

int job_key_read(int generation, struct job_key *ret)
{
    struct secret_key of_job;
    char text[64];
    const char *why = "";

    *ret = (struct job_key){.generation = (uint32_t)generation};
    TRY(env_encrypt(&ret->encrypts));
    if (!getenv("CRUN_KEY_FD"))
        return ret->encrypts ? fail_without_key() : 0;
    int fd = env_inherited_fd("CRUN_KEY_FD");
    if (fd < 0 || !read_sealed(fd, &of_job))
        return crw_fail(
            CRW_E_ENVIRONMENT,
            "CRUN_KEY_FD is \"%.32s\", which is no sealed file with the job's key: the program, or "
            "one between crun and it, has closed that descriptor, and without the key the ranks of "
            "other hosts refuse this one",
            getenv("CRUN_KEY_FD"));
    int n = snprintf(text, sizeof(text), "libcrw between hosts, generation %d", generation);
    int r = key_mac(&of_job, text, (size_t)n, ret->of_generation.bytes, &why);
    key_erase(&of_job, sizeof(of_job));
    if (r < 0)
        return crw_fail(CRW_E_ENVIRONMENT, "the job has a key, and this rank cannot prove it: %s", why);
    ret->is_set = true;
    return 0;
}
