#include "launcher/util/control_path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "launcher/util/envp.h"

enum { ADDRESS_SIZE = 108 }; /* of sun_path in struct sockaddr_un */

/* The XDG specification has relative paths in these variables ignored. */
static const char *absolute_path(char *const *environment, const char *name)
{
    const char *path = envp_get(environment, name);

    return path && *path == '/' ? path : NULL;
}

void control_folder(char *const *environment, unsigned user, char ret[CONTROL_PATH_SIZE])
{
    const char *runtime = absolute_path(environment, "XDG_RUNTIME_DIR");

    if (runtime && strlen(runtime) + strlen("/crun/") + CONTROL_NAME_SIZE > ADDRESS_SIZE)
        runtime = NULL;
    if (!runtime && user != 0)
        (void)snprintf(ret, CONTROL_PATH_SIZE, "/tmp/crun-%u", user); /* fits */
    else
        (void)snprintf(ret, CONTROL_PATH_SIZE, "%s/crun", runtime ? runtime : "/run"); /* fits */
}

void control_socket_name(const char *job, int pid, char ret[CONTROL_NAME_SIZE])
{
    char name[41];

    (void)snprintf(name, sizeof(name), "%s", job); /* a longer one is cut: the answer has the whole name */
    for (char *c = name; *c; c++) {
        bool is_plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                        (c > name && *c == '.') || *c == '-' || *c == '_';
        if (!is_plain)
            *c = '_';
    }
    if (pid)
        (void)snprintf(ret, CONTROL_NAME_SIZE, "%s.%d.sock", name, pid); /* fits */
    else
        (void)snprintf(ret, CONTROL_NAME_SIZE, "%s.sock", name); /* fits */
}

void control_front_name(char *const *environment, unsigned user, int pid, char ret[CONTROL_PATH_SIZE])
{
    control_folder(environment, user, ret);
    size_t n = strlen(ret);
    if (pid)
        (void)snprintf(ret + n, CONTROL_PATH_SIZE - n, "/front.%d", pid); /* fits, as the name of a job */
    else
        (void)snprintf(ret + n, CONTROL_PATH_SIZE - n, "/front.");
}

bool control_history_path(char *const *environment, char ret[CONTROL_PATH_SIZE])
{
    const char *state = absolute_path(environment, "XDG_STATE_HOME"),
               *home = absolute_path(environment, "HOME");

    if (!state && !home)
        return false;
    int n = state ? snprintf(ret, CONTROL_PATH_SIZE, "%s/crun/history.jsonl", state)
                  : snprintf(ret, CONTROL_PATH_SIZE, "%s/.local/state/crun/history.jsonl", home);
    return n < CONTROL_PATH_SIZE;
}

int control_secret_path(char *const *environment, char ret[CONTROL_PATH_SIZE])
{
    const char *config = envp_get(environment, "XDG_CONFIG_HOME"), *home = envp_get(environment, "HOME");
    bool has_config = config && *config;

    if (!has_config && !(home && *home))
        return -ENOENT;
    int n = snprintf(ret, CONTROL_PATH_SIZE, "%s%s/crun/secret", has_config ? config : home,
                     has_config ? "" : "/.config");
    return n > 0 && n < CONTROL_PATH_SIZE ? 0 : -ENAMETOOLONG;
}
