#include "launcher/util/envp.h"

#include <string.h>

const char *envp_get(char *const *environment, const char *name)
{
    size_t n = strlen(name);

    for (char *const *e = environment; *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}
