#include "worker-runtime/crw.h"

/* CRW_VERSION comes from the build, so that the project's version is written in one place. */
const char *crw_version(void)
{
    return CRW_VERSION;
}
