/* A plugin of another version, for test_backend. */

#include "worker-runtime/cuda/backend_os.h"

const struct backend *crw_backend(void);

const struct backend *crw_backend(void)
{
    static const struct backend old = {.abi = 4711, .name = "old"};
    return &old;
}
