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

bool envp_has_name_of(char *const *environment, size_t n, const char *variable)
{
    size_t size = strcspn(variable, "=") + 1;

    for (size_t i = 0; i < n; i++)
        if (strncmp(environment[i], variable, size) == 0)
            return true;
    return false;
}

bool envp_begins_with(const char *variable, const char *const *beginnings)
{
    while (*beginnings && strncmp(variable, *beginnings, strlen(*beginnings)) != 0)
        beginnings++;
    return *beginnings != NULL;
}
