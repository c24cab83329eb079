#include "launcher/front/front_remedy.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "launcher/util/template.h"

/* The first row of which a part was printed counts: for a changed key ssh prints several lines. */
static const struct {
    const char *printed, *sentence;
} remedies[] = {
    {"HOST IDENTIFICATION HAS CHANGED",
     "its host key has changed: if that is expected, remove the old key (ssh-keygen -R ${name}) and run `ssh ${host}` once"},
    {"Host key verification failed",
     "its host key is unknown: run `ssh ${host}` once and accept the key, or add it to ~/.ssh/known_hosts with ssh-keyscan"},
    {"Permission denied (",
     "it accepts no key of yours, and ssh must not ask for a password here: run `ssh-copy-id ${host}`, or ssh-add for a key "
     "with a passphrase"},
    {"Too many authentication failures",
     "ssh offers it too many keys: name one for it in ~/.ssh/config (IdentityFile, IdentitiesOnly yes)"},
    {"Could not resolve hostname",
     "its name has no address here: correct the name, or give it a HostName in ~/.ssh/config"},
    {"Connection refused",
     "no ssh server listens on its port: start sshd there, or give its port in ~/.ssh/config or by --launch='ssh -p PORT'"},
    {"timed out", "it did not answer in time: is it running, and does a firewall let ssh through?"},
    {"No route to host", "no route leads to it: is it running, and on this network?"},
    {"Network is unreachable", "its network cannot be reached from here"},
    {"kex_exchange_identification",
     "its ssh server closed the connection at once: look for MaxStartups in its sshd_config, and into its log"},
    {"Bad owner or permissions",
     "ssh refuses its configuration here: the files in ~/.ssh must be yours alone (chmod 600)"},
    {"srun: error: Unable to",
     "srun could not start a step on it: is it in this allocation of Slurm (SLURM_JOB_NODELIST)?"},
    {": task 0: Exited with exit code", ""}, /* srun, behind the cause */
    {": task 0: Killed", ""},
    {"command not found", "a command that starts crun is missing on it"},
};

char *front_remedy(const char *text, const char *host)
{
    const char *at = strrchr(host, '@');
    const struct template_variable variables[] = {{"host", host}, {"name", at ? at + 1 : host}};

    for (size_t i = 0; i < ARRAY_SIZE(remedies); i++)
        if (strstr(text, remedies[i].printed))
            return template_substitute(remedies[i].sentence, variables, ARRAY_SIZE(variables));
    return NULL;
}
