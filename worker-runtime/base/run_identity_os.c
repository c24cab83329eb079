#include "worker-runtime/base/run_identity_os.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"

static _Atomic uint32_t later_generation;

static bool is_instance(const char *text)
{
    static const char characters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    size_t n = text ? strlen(text) : 0;

    return n > 0 && n < RUN_INSTANCE_SIZE && strspn(text, characters) == n;
}

void run_identity_read(struct run_identity *ret)
{
    const char *instance = getenv("CRUN_INSTANCE"), *generation = getenv("CRUN_GENERATION");
    uint32_t later = atomic_load(&later_generation);
    uint64_t number = 0;

    *ret = (struct run_identity){0};
    if (!is_instance(instance))
        return;
    (void)snprintf(ret->instance, sizeof(ret->instance), "%s", instance); /* fits */
    if (generation && decimal_parse(generation, 0, INT32_MAX, &number))
        ret->generation = (uint32_t)number;
    if (later > ret->generation)
        ret->generation = later;
}

void run_identity_set_generation(int generation)
{
    atomic_store(&later_generation, (uint32_t)generation);
}
