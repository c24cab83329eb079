#include "launcher/cli/oci_call.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"

const char oci_call_answer[] =
    "this is crun, the launcher of training jobs, and not the OCI runtime that podman, buildah and cri-o look for under this name: "
    "install that one (apt-get install crun), or write runtime = \"runc\" below [engine] in /etc/containers/containers.conf, or "
    "install this launcher without its short name (meson setup -Dshort_names=false; its other name is crun-launch)";

/* n: length of the word that counts. */
static bool is_among(const char *const *names, size_t n_names, const char *word, size_t n)
{
    for (size_t i = 0; i < n_names; i++)
        if (strlen(names[i]) == n && strncmp(names[i], word, n) == 0)
            return true;
    return false;
}

bool oci_call_is(char *const *words, bool exists)
{
    static const char *const commands[] = {"create", "start", "state", "kill", "delete",
                                           "run",    "list",  "spec",  "exec", "features"};
    static const char *const options[] = {"--root", "--log-format", "--systemd-cgroup"};
    static const char *const log[] = {"--log"};
    bool is_log;

    if (words[0] && !exists && is_among(commands, ARRAY_SIZE(commands), words[0], strlen(words[0])))
        return true;
    words += words[0] && strcmp(words[0], "--debug") == 0; /* both programs have it */
    is_log = words[0] && is_among(log, 1, words[0], strcspn(words[0], "="));
    for (; *words; words++) {
        if (is_among(options, ARRAY_SIZE(options), *words, strcspn(*words, "=")) ||
            (is_log && is_among(commands, ARRAY_SIZE(commands), *words, strlen(*words))))
            return true;
        if (!is_log) /* which alone may be short for an option of the launcher */
            break;
    }
    return false;
}
