#include "launcher/ctl/stacks_command_sock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/ctl/control_client_sock.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/job_stacks_json.h"
#include "launcher/ctl/print_os.h"
#include "launcher/util/strlist.h"
#include "base/cleanup.h"

enum { STACKS_PATIENCE_MS = 20000 };

/* Whether it is the socket of that job. */
static bool is_of_job(const char *path, const char *job)
{
    _cleanup_free_ char *reply = NULL;
    struct job_status status = {.crun_pid = 0};
    size_t n = 0;

    if (control_client_ask(path, "status", CONTROL_PATIENCE_MS, &reply, &n) != 0)
        return false; /* a socket that a killed crun left */
    bool found = job_status_from_json(reply, n, &status) == 0 && job_status_name_matches(status.job, job);
    job_status_finish(&status);
    return found;
}

static int print_stacks(const char *reply, size_t n, bool is_json)
{
    _cleanup_free_ char *text = is_json ? strndup(reply, n) : job_stacks_text(reply, n);

    if (text)
        return is_json ? print_json_line(text) : print_text(text);
    (void)fprintf(stderr, "crunctl: the stacks could not be taken, or crun is of another release\n");
    return 1;
}

static int ask_for_stacks(const char *path, bool is_json)
{
    _cleanup_free_ char *reply = NULL;
    size_t n = 0;

    int r = control_client_ask(path, "stacks", STACKS_PATIENCE_MS, &reply, &n);
    if (!r)
        return print_stacks(reply, n, is_json);
    (void)fprintf(stderr, "crunctl: %s: %s\n", path, strerror(-r));
    return 1;
}

int stacks_command(char *const *environment, const char *socket, const char *job, bool is_json)
{
    struct strlist sockets = {0};
    int code = 0, n_found = 0;

    control_client_list(environment, socket, &sockets);
    for (size_t i = 0; !sockets.failed && i < sockets.n_items; i++)
        if (is_of_job(sockets.items[i], job)) {
            n_found++;
            code |= ask_for_stacks(sockets.items[i], is_json);
        }
    strlist_finish(&sockets);
    if (n_found == 0)
        (void)fprintf(stderr, "crunctl: no job%s%s%s of yours runs on this node\n", job ? " '" : "",
                      job ? job : "", job ? "'" : "");
    return n_found == 0 ? 3 : code;
}
