/*
 * The child changes the directory: a hanging file system holds up the child, and the far end goes on to watch the
 * channel. A failure in the child is a sentence on a pipe; exec closes the pipe.
 */

#include "launcher/front/far_start_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "launcher/front/far_header.h"
#include "launcher/host/local_address_os.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/util/envp.h"
#include "launcher/util/strlist.h"
#include "proto/address.h"
#include "base/cleanup.h"

extern char **environ;

enum { SECRET_FD = 3, OUTPUT_FD = 4, N_CHILD_FDS = 5, ADDRESS_SIZE = 64 };

/* Where workers of other hosts reach this host: as ssh reached it, else by the default route, else at any address. An option
 * --local-addr of the user comes later, and wins. */
static void find_local_address(char ret[ADDRESS_SIZE])
{
    const char *connection = envp_get(environ, "SSH_CONNECTION");
    char address[ADDRESS_SIZE] = "";

    bool is_by_ssh = connection && sscanf(connection, "%*63s %*63s %63s", address) == 1 &&
                     !address_is_loopback(address) && local_address_towards(address, ret, ADDRESS_SIZE) == 0;
    bool is_found = is_by_ssh ||
                    local_address_towards("192.0.2.1", ret, ADDRESS_SIZE) == 0 || /* sends nothing */
                    local_address_in(LOCAL_ADDRESS_ANY_V4, ret, ADDRESS_SIZE) == 0 ||
                    local_address_in(LOCAL_ADDRESS_ANY_V6, ret, ADDRESS_SIZE) == 0;
    if (!is_found)
        (void)snprintf(ret, ADDRESS_SIZE, "127.0.0.1");
}

/* ---- the child ---- */

struct child_start {
    const struct far_header *header;
    const char *directory;
    char *const *argv, *const *environment;
    const sigset_t *mask;
    pid_t parent;
    int fds[N_CHILD_FDS]; /* by their number in the agent; -1: none */
};

static int place_descriptors(const struct child_start *s)
{
    int moved[N_CHILD_FDS];

    for (int i = 0; i < N_CHILD_FDS; i++) {
        moved[i] = s->fds[i] < 0 ? -1 : fcntl(s->fds[i], F_DUPFD_CLOEXEC, N_CHILD_FDS);
        if (s->fds[i] >= 0 && moved[i] < 0)
            return -errno;
    }
    for (int i = 0; i < N_CHILD_FDS; i++)
        if (moved[i] >= 0 && dup2(moved[i], i) < 0)
            return -errno;
    return 0;
}

/* Changes the directory and executes; returns the sentence of a failure. */
static const char *become_agent(const struct child_start *s)
{
    char path[PATH_MAX];
    static char sentence[CHANNEL_TEXT_MAX];

    int r = place_descriptors(s);
    if (!r && chdir(s->directory) < 0) {
        (void)snprintf(sentence, sizeof(sentence),
                       "the working directory %.3800s: %s; create it, or choose another one with --chdir",
                       s->directory, strerror(errno)); /* cut if long */
        return sentence;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* cannot fail */
    if (getppid() != s->parent)
        _exit(1); /* the far end is dead already */
    (void)sigprocmask(SIG_SETMASK, s->mask, NULL);
    ssize_t n = r ? 0 : readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    if (!r) {
        (void)execve(path, s->argv, s->environment);             /* its name is in process lists */
        (void)execve("/proc/self/exe", s->argv, s->environment); /* the file was replaced or deleted */
        r = -errno;
    }
    (void)snprintf(sentence, sizeof(sentence), "cannot start crun: %s", strerror(-r));
    return sentence;
}

/* ---- the far end ---- */

/* Pipes between the two: the standard streams, the secret, a failure; `theirs` becomes the child's end. */
struct links {
    int ours[N_CHILD_FDS + 1], theirs[N_CHILD_FDS + 1];
};

static int open_links(struct links *l, bool has_secret)
{
    for (int i = 0; i <= N_CHILD_FDS; i++) {
        const bool child_reads = i == STDIN_FILENO || i == SECRET_FD;
        int fds[2];

        if (i == SECRET_FD && !has_secret)
            continue;
        if ((i == OUTPUT_FD ? socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)
                            : pipe2(fds, O_CLOEXEC)) < 0)
            return -errno;
        l->ours[i] = fds[child_reads];
        l->theirs[i] = fds[!child_reads];
    }
    return 0;
}

static void close_all(int *fds)
{
    for (int i = 0; i <= N_CHILD_FDS; i++)
        cleanup_close(&fds[i]);
}

/* The pipe takes CHANNEL_SECRET_MAX bytes at once. */
static int write_secret(int *fd, const struct far_header *h)
{
    ssize_t n = h->n_secret ? write(*fd, h->secret, h->n_secret) : 0;
    int r = n < 0 ? -errno : (size_t)n == h->n_secret ? 0 : -EIO;

    cleanup_close(fd);
    *fd = -1;
    return r;
}

static int fork_agent(struct far_agent *ret, struct links *l, struct child_start *start)
{
    size_t limit;

    memcpy(start->fds, l->theirs, sizeof(start->fds));
    ret->pid = fork();
    if (ret->pid < 0)
        return -errno;
    if (ret->pid == 0) {
        int failure = fcntl(l->theirs[N_CHILD_FDS], F_DUPFD_CLOEXEC, N_CHILD_FDS);
        const char *sentence = become_agent(start);
        _exit(write(failure, sentence, strlen(sentence)) < 0 ? 126 : 127);
    }
    /* Two descriptors for each worker are to come. The agent was started with the limit as it was. */
    (void)spawn_raise_open_files(&limit); /* a lower limit is enough for few workers */
    memcpy(ret->stdio, l->ours, sizeof(ret->stdio));
    ret->handover = l->ours[OUTPUT_FD];
    ret->failure = l->ours[N_CHILD_FDS];
    return 0;
}

static int start_with(struct far_agent *ret, struct child_start *start)
{
    struct links l = {{-1, -1, -1, -1, -1, -1}, {-1, -1, -1, -1, -1, -1}};
    int r = open_links(&l, start->header->n_secret > 0);

    if (!r && start->header->n_secret > 0)
        r = write_secret(&l.ours[SECRET_FD], start->header);
    if (!r)
        r = fork_agent(ret, &l, start);
    close_all(l.theirs);
    if (r)
        close_all(l.ours);
    return r;
}

int far_agent_start(struct far_agent *ret, const struct far_header *header, const char *endpoint,
                    const sigset_t *mask)
{
    char output[] = "CRUN_OUTPUT_FD=4", secret[] = "CRUN_SECRET_FD=3", open[] = "CRUN_SECRET_FD=";
    const char *directory = header->directory ? header->directory : "", *home = envp_get(environ, "HOME");
    bool is_relative = *directory != '/'; /* the bootstrap may have left the home directory */
    _cleanup_free_ char *place =
        strbuf_format("PWD=%s/%s", is_relative && home ? home : "", directory + !is_relative);
    char *own[] = {output, header->n_secret > 0 ? secret : open, place, NULL};
    struct strlist arguments = {0}, environment = {0};
    char local_addr[ADDRESS_SIZE];

    find_local_address(local_addr);
    far_header_arguments(header, local_addr, endpoint, &arguments);
    far_header_environment(header, own, environ, &environment);
    struct child_start start = {.header = header,
                                .directory = place ? place + strlen("PWD=") : NULL,
                                .argv = arguments.items,
                                .environment = environment.items,
                                .mask = mask,
                                .parent = getpid()};
    int r = !place || arguments.failed || environment.failed ? -ENOMEM : start_with(ret, &start);
    strlist_finish(&arguments);
    strlist_finish(&environment);
    return r;
}
