/*
 * /proc/self/cgroup names the cgroup: "0::/a/b" in v2, "4:memory:/a/b" in v1, both on machines with both, where the
 * memory controller is v1's if it is named at all. Inside a container that has its cgroup mounted as the root, but no
 * cgroup namespace, the name is the host's and leads nowhere: then the root of the mount is the cgroup of this process.
 */

#include "launcher/host/cgroup_os.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/util/read_file_os.h"

enum { TEXT_SIZE = 4096 };

/* The number behind "oom_kill "; "oom_kill_disable" is something else. */
static long oom_kills_in(const char *root, const char *mount, int n_name, const char *name, const char *file)
{
    char text[TEXT_SIZE];

    (void)read_file_text(text, sizeof(text), "%s/sys/fs/cgroup%s%.*s/%s", root, mount, n_name, name, file);
    const char *label = strstr(text, "oom_kill ");
    return label ? atol(label + strlen("oom_kill ")) : -1;
}

static long oom_kills_below(const char *root, const char *mount, const char *name, const char *file)
{
    int n = (int)strcspn(name, "\n");

    long kills = oom_kills_in(root, mount, n, name, file);
    return kills >= 0 ? kills : oom_kills_in(root, mount, 0, "", file);
}

/* The name on the line of v1's memory controller, which may be mounted together with others ("3:cpu,memory:/a"). */
static const char *memory_name(const char *cgroups)
{
    for (const char *line = cgroups; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *controllers = strchr(line, ':');
        const char *name = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!name)
            return NULL;
        for (const char *c = controllers + 1; c < name; c += strcspn(c, ",:") + 1)
            if (strcspn(c, ",:") == strlen("memory") && strncmp(c, "memory", strlen("memory")) == 0)
                return name + 1;
    }
    return NULL;
}

long cgroup_oom_kills(const char *root)
{
    char cgroups[TEXT_SIZE];

    if (!read_file_text(cgroups, sizeof(cgroups), "%s/proc/self/cgroup", root))
        return -1;
    const char *name = memory_name(cgroups);
    if (name)
        return oom_kills_below(root, "/memory", name, "memory.oom_control");
    const char *v2 = strncmp(cgroups, "0::", 3) == 0 ? cgroups : strstr(cgroups, "\n0::");
    if (!v2)
        return -1;
    name = strchr(v2 + 1, ':') + 2;
    long kills = oom_kills_below(root, "", name, "memory.events");
    return kills >= 0 ? kills : oom_kills_below(root, "/unified", name, "memory.events");
}
