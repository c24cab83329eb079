#include "base/cgroup_numbers_os.h"

#include <inttypes.h>
#include <string.h>

/* NULL: there is no such file. */
static FILE *open_in(const char *folder, const char *file)
{
    char path[CGROUP_PATH_SIZE + 64];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file); /* a path that is cut off is no file */
    return fopen(path, "re");
}

uint64_t cgroup_number(const char *folder, const char *file, const char *key, uint64_t otherwise)
{
    FILE *f = open_in(folder, file);
    uint64_t number = otherwise;
    char line[256];
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f))
        found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%" SCNu64, &number) == 1;
    if (f)
        (void)fclose(f); /* only read */
    return number;
}

/* top: the folder of the hierarchy; path: "/a/b", which is shortened. */
static uint64_t least_upwards(const char *top, char *path, bool v1,
                              uint64_t (*of)(const char *folder, bool v1))
{
    char folder[CGROUP_PATH_SIZE];
    uint64_t least = UINT64_MAX;

    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = '\0';
        (void)snprintf(folder, sizeof(folder), "%s%s", top, path); /* as above */
        least = of(folder, v1) < least ? of(folder, v1) : least;
    }
    return least;
}

uint64_t cgroup_least(const char *root, const char *controller, uint64_t (*of)(const char *folder, bool v1))
{
    char line[CGROUP_PATH_SIZE], name[32], top[CGROUP_PATH_SIZE];
    uint64_t least = UINT64_MAX;
    FILE *f = open_in(root, "proc/self/cgroup");

    (void)snprintf(name, sizeof(name), ":%s:/", controller);
    while (f && fgets(line, sizeof(line), f)) {
        bool v1 = strstr(line, name), v2 = strncmp(line, "0::/", 4) == 0;

        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(top, sizeof(top), "%s/sys/fs/cgroup%s%s", root, v1 ? "/" : "", v1 ? controller : "");
        if (v1 || v2) {
            uint64_t found = least_upwards(top, strchr(line, '/'), v1, of);

            least = found < least ? found : least;
        }
    }
    if (f)
        (void)fclose(f); /* only read */
    return least;
}
