/*
 * A step, not merely a job: in an interactive allocation the shell has the job's variables too, and a crun started there is meant for
 * that machine alone. A step of one node needs no rendezvous over the network either.
 *
 * Every node derives the same port without a message. It lies below those that Linux hands out for
 * connections (32768 and up), and differs between steps of a job, as the nodes of the step before may still be
 * there.
 */

#include "launcher/cli/slurm.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <string.h>

#include "launcher/util/envp.h"

static uint64_t parse_number(const char *text)
{
    return text ? strtoull(text, NULL, 10) : 0;
}

static uint16_t derive_port(const char *job_id, const char *step_id)
{
    return (uint16_t)(SLURM_PORT_FIRST +
                      (parse_number(job_id) * 16 + parse_number(step_id) % 16) % SLURM_PORTS);
}

int slurm_find(char *const *environment, struct slurm *ret, const char **ret_variable)
{
    const char *variable = "SLURM_STEP_NODELIST", *list = envp_get(environment, variable);
    struct slurm found = {.job_id = envp_get(environment, "SLURM_JOB_ID"),
                          .step_id = envp_get(environment, "SLURM_STEP_ID")};
    struct hostlist_reader reader;

    if (!list) {
        variable = "SLURM_JOB_NODELIST";
        list = envp_get(environment, variable);
    }
    if (!found.job_id || !found.step_id || !list || !envp_get(environment, "SLURM_PROCID"))
        return SLURM_E_NONE;
    *ret_variable = variable;
    found.n_nodes = hostlist_count(list);
    if (found.n_nodes < 0 || !hostlist_begin(&reader, list) || !hostlist_next(&reader, found.host))
        return SLURM_E_BAD;
    if (found.n_nodes == 1)
        return SLURM_E_NONE;
    found.port = derive_port(found.job_id, found.step_id);
    *ret = found;
    return 0;
}

void slurm_each_setting(const char *conf, const char *name,
                        void (*take)(void *data, const char *value, size_t n), void *data)
{
    size_t n_name = strlen(name);

    for (const char *line = conf; *line;) {
        size_t n_line = strcspn(line, "\n"), n = strcspn(line, "#\n");
        for (size_t i = 0; i + n_name < n; i++)
            if ((i == 0 || strchr(" \t", line[i - 1])) && strncasecmp(line + i, name, n_name) == 0)
                take(data, line + i + n_name, n - i - n_name);
        line += n_line + (line[n_line] == '\n');
    }
}

/* "socket=/run/munge.socket,cred_expire=10" with whatever follows it on the line. */
static void take_auth_info(void *data, const char *value, size_t n)
{
    static const char name[] = "socket=";
    char *ret = data;

    for (size_t at = 0; at < n && !strchr(" \t\r", value[at]);) {
        size_t part = at;
        while (part < n && !strchr(", \t\r", value[part]))
            part++;
        size_t size = part - at;
        if (size > sizeof(name) - 1 && strncasecmp(value + at, name, sizeof(name) - 1) == 0 &&
            size - (sizeof(name) - 1) < MUNGE_SOCKET_SIZE) {
            memcpy(ret, value + at + sizeof(name) - 1, size - (sizeof(name) - 1));
            ret[size - (sizeof(name) - 1)] = '\0';
        }
        at = part < n && value[part] == ',' ? part + 1 : n;
    }
}

void slurm_munge_socket(const char *conf, char ret[MUNGE_SOCKET_SIZE])
{
    ret[0] = '\0';
    if (conf)
        slurm_each_setting(conf, "AuthInfo=", take_auth_info, ret);
}
