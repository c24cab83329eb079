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
#include "launcher/front/far_header.h"
#include "launcher/host/local_address_os.h"
#include "launcher/supervise/spawn_worker_os.h"
#include "launcher/util/envp.h"
#include "launcher/util/strlist.h"
#include "proto/address.h"
#include "base/cleanup.h"

extern char **environ;

enum { ADDRESS_SIZE = 64 };

#define NO_LINKS                                                                                             \
    {                                                                                                        \
        -1, -1, -1, -1, -1, -1                                                                               \
    }

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
    struct strlist arguments;
    const sigset_t *mask;
    pid_t parent;
    int links[FAR_LINK_COUNT]; /* the child's ends */
};

/* The loop of the far end has the low numbers, so no link has the number of another link. */
static int place_links(const struct child_start *s)
{
    for (int i = 0; i < FAR_LINK_FAILURE; i++)
        if (s->links[i] >= 0 && dup2(s->links[i], i) < 0)
            return -errno;
    return 0;
}

/* A variable of the header takes the place of the far end's; of two in the header the first one holds. */
static int set_environment(const struct far_header *h, const char *directory)
{
    int r = unsetenv("CRUN_ADMITTED") < 0 ? -1 : 0; /* of the host: the header alone admits */

    for (size_t i = h->variables.n_items; i > 0 && r == 0; i--)
        r = putenv(h->variables.items[i - 1]);
    if (r == 0)
        r = setenv("PWD", directory, 1);
    if (r == 0)
        r = setenv("CRUN_OUTPUT_FD", "4", 1);
    if (r == 0)
        r = setenv("CRUN_SECRET_FD", h->n_secret > 0 ? "3" : "", 1);
    return r == 0 ? 0 : -errno;
}

/* The bootstrap may have left the home directory, where a relative directory begins. */
static int change_directory(const struct far_header *h, char path[PATH_MAX])
{
    const char *home = getenv("HOME"), *directory = h->directory.n_items ? h->directory.items[0] : "";
    const bool is_absolute = *directory == '/';

    (void)snprintf(path, PATH_MAX, "%s%s%s", is_absolute || !home ? "" : home, is_absolute ? "" : "/",
                   directory); /* cut, and not found, if too long for the kernel */
    return chdir(path) < 0 ? -errno : 0;
}

/* Returns the sentence of a failure. */
static const char *become_agent(const struct child_start *s)
{
    char path[PATH_MAX];
    static char sentence[CHANNEL_TEXT_MAX];

    int r = change_directory(s->header, path);
    if (r) {
        (void)snprintf(sentence, sizeof(sentence),
                       "the working directory %.3800s: %s; create it, or choose another one with --chdir",
                       path, strerror(-r)); /* cut if long */
        return sentence;
    }
    r = place_links(s);
    if (!r)
        r = set_environment(s->header, path);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* cannot fail */
    if (getppid() != s->parent)
        _exit(1); /* the far end is dead already */
    (void)sigprocmask(SIG_SETMASK, s->mask, NULL);
    ssize_t n = r ? 0 : readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    if (!r) {
        (void)execv(path, s->arguments.items);             /* its name is in process lists */
        (void)execv("/proc/self/exe", s->arguments.items); /* the file was replaced or deleted */
        r = -errno;
    }
    (void)snprintf(sentence, sizeof(sentence), "cannot start crun: %s", strerror(-r));
    return sentence;
}

/* ---- the far end ---- */

static int open_links(int ours[FAR_LINK_COUNT], int theirs[FAR_LINK_COUNT], bool has_secret)
{
    for (int i = 0; i < FAR_LINK_COUNT; i++) {
        const bool child_reads = i == FAR_LINK_IN || i == FAR_LINK_SECRET;
        int fds[2];

        if (i == FAR_LINK_SECRET && !has_secret)
            continue;
        if ((i == FAR_LINK_OUTPUT ? socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)
                                  : pipe2(fds, O_CLOEXEC)) < 0)
            return -errno;
        ours[i] = fds[child_reads];
        theirs[i] = fds[!child_reads];
    }
    return 0;
}

static void close_links(int *links)
{
    for (int i = 0; i < FAR_LINK_COUNT; i++)
        close_fd(&links[i]);
}

/* The pipe takes CHANNEL_SECRET_MAX bytes at once. */
static int write_secret(int *fd, const struct far_header *h)
{
    ssize_t n = h->n_secret ? write(*fd, h->secret, h->n_secret) : 0;
    int r = n < 0 ? -errno : (size_t)n == h->n_secret ? 0 : -EIO;

    close_fd(fd);
    return r;
}

int far_agent_start(struct far_agent *ret, const struct far_header *header, const char *endpoint,
                    const sigset_t *mask)
{
    struct child_start start = {.header = header, .mask = mask, .parent = getpid(), .links = NO_LINKS};
    char local_addr[ADDRESS_SIZE];
    size_t limit;

    *ret = (struct far_agent){.links = NO_LINKS};
    find_local_address(local_addr);
    far_header_arguments(header, local_addr, endpoint, &start.arguments);
    int r = start.arguments.failed ? -ENOMEM : open_links(ret->links, start.links, header->n_secret > 0);
    if (!r)
        r = write_secret(&ret->links[FAR_LINK_SECRET], header);
    if (!r)
        r = (ret->pid = fork()) < 0 ? -errno : 0;
    if (!r && ret->pid == 0) {
        const char *sentence = become_agent(&start);
        _exit(write(start.links[FAR_LINK_FAILURE], sentence, strlen(sentence)) < 0 ? 126 : 127);
    }
    close_links(start.links);
    strlist_finish(&start.arguments);
    if (r)
        close_links(ret->links);
    else /* two descriptors for each worker are to come; the agent was started with the limit as it was */
        (void)spawn_raise_open_files(&limit); /* a lower limit is enough for few workers */
    return r;
}
