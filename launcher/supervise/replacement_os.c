/*
 * The memory file: a head, then an array of pointers with room for the NULLs that end both lists, then the strings
 * with their NULs: the file, the arguments, the environment. The guardian maps it privately and sets the pointers in
 * its copy.
 *
 * Both sides are one program, forked one from the other: no other program reads this format, and the guardian does not
 * validate it.
 *
 * Ways it fails: no memory for the file, and no free descriptor in the guardian: the kernel then delivers the record with
 * fewer descriptors. Both are reported as a failed start.
 */

#include "launcher/supervise/replacement_os.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/cli/numa.h"
#include "launcher/supervise/death_notice_sock.h"
#include "launcher/util/send_descriptors_sock.h"
#include "base/cleanup.h"
#include "base/err.h"

struct head {
    size_t n_arguments, n_variables;
    bool is_bound;
    struct numa_cpus cpus;
};

enum { N_FDS = 7, N_SENT_MAX = N_FDS + 1 }; /* the memory file comes first */
static_assert((int)N_SENT_MAX <= (int)SEND_DESCRIPTORS_MAX, "all fit");

/* ---- texts ---- */

static size_t count_strings(char *const *list, size_t *n_bytes)
{
    size_t n = 0;

    for (; list[n]; n++)
        *n_bytes += strlen(list[n]) + 1;
    return n;
}

static char *append_string(char *to, const char *text)
{
    size_t n = strlen(text) + 1;

    memcpy(to, text, n);
    return to + n;
}

static void write_texts(uint8_t *map, const struct head *head, const struct spawn_worker *w)
{
    char *to = (char *)map + sizeof(*head) + (head->n_arguments + head->n_variables + 2) * sizeof(char *);

    memcpy(map, head, sizeof(*head));
    to = append_string(to, w->file);
    for (size_t i = 0; i < head->n_arguments; i++)
        to = append_string(to, w->argv[i]);
    for (size_t i = 0; i < head->n_variables; i++)
        to = append_string(to, w->environment[i]);
}

static int make_texts(const struct spawn_worker *w, int *ret_fd)
{
    size_t n_bytes = strlen(w->file) + 1;
    struct head head = {.n_arguments = count_strings(w->argv, &n_bytes),
                        .n_variables = count_strings(w->environment, &n_bytes),
                        .is_bound = w->cpus != NULL};
    size_t size = sizeof(head) + (head.n_arguments + head.n_variables + 2) * sizeof(char *) + n_bytes;
    _cleanup_close_ int fd = memfd_create("crun-worker", MFD_CLOEXEC);
    void *map;

    if (w->cpus)
        head.cpus = *w->cpus;
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        return -errno;
    map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    write_texts(map, &head, w);
    (void)munmap(map, size); /* cannot fail for a mapping made above */
    *ret_fd = steal_fd(&fd);
    return 0;
}

static char **set_pointers(char **pointers, size_t n, char **text)
{
    for (size_t i = 0; i < n; i++) {
        pointers[i] = *text;
        *text += strlen(*text) + 1;
    }
    pointers[n] = NULL;
    return pointers + n + 1;
}

static int map_texts(int fd, struct replacement *r)
{
    struct stat info;
    struct head *head;

    if (fstat(fd, &info) < 0)
        return -errno;
    head = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (head == MAP_FAILED)
        return -errno;
    r->texts = head;
    r->texts_size = (size_t)info.st_size;
    char **arguments = (char **)(head + 1);
    char *text = (char *)(arguments + head->n_arguments + head->n_variables + 2);
    r->texts_at = (size_t)(text - (char *)head);
    r->n_arguments = head->n_arguments;
    r->n_variables = head->n_variables;
    r->cpus_at = head->is_bound ? offsetof(struct head, cpus) : 0;
    r->worker.file = text;
    text += strlen(text) + 1;
    char **variables = set_pointers(arguments, head->n_arguments, &text);
    (void)set_pointers(variables, head->n_variables, &text);
    r->worker.argv = arguments;
    r->worker.environment = variables;
    r->worker.cpus = head->is_bound ? &head->cpus : NULL;
    return 0;
}

/* ---- descriptors ---- */

/* The members that hold descriptors, in the order that both sides use. */
static void list_descriptors(struct spawn_worker *w, int *places[N_FDS])
{
    places[0] = &w->stdio[0];
    places[1] = &w->stdio[1];
    places[2] = &w->stdio[2];
    places[3] = &w->notice_fd;
    places[4] = &w->state_fd;
    places[5] = &w->import_fd;
    places[6] = &w->key_fd;
}

union control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(N_SENT_MAX * sizeof(int))];
};

int replacement_send_begin(int link, const struct death_notice *notice)
{
    struct guardian_order order = {.kind = GUARDIAN_BEGIN};

    if (!notice)
        return send_descriptors(link, &order, sizeof(order), NULL, 0, 0);
    _cleanup_close_ int fd = memfd_create("crun-notice", MFD_CLOEXEC);
    if (fd < 0 || write(fd, notice, sizeof(*notice)) != (ssize_t)sizeof(*notice))
        return -errno;
    return send_descriptors(link, &order, sizeof(order), &fd, 1, 0);
}

int replacement_send(int link, int worker, const struct spawn_worker *w)
{
    struct guardian_order order = {.kind = GUARDIAN_START, .worker = worker};
    struct spawn_worker copy = *w;
    int fds[N_SENT_MAX], *places[N_FDS], n = 0;
    _cleanup_close_ int texts = -1;

    int r = make_texts(w, &texts);
    if (r)
        return r;
    fds[n++] = texts;
    list_descriptors(&copy, places);
    for (int i = 0; i < N_FDS; i++)
        if (*places[i] >= 0) {
            order.descriptors |= 1u << i;
            fds[n++] = *places[i];
        }
    return send_descriptors(link, &order, sizeof(order), fds, n, 0);
}

static void take_descriptors(const struct guardian_order *order, const int *fds, int n, struct replacement *r)
{
    int *places[N_FDS], next = 0;

    list_descriptors(&r->worker, places);
    for (int i = 0; i < N_FDS; i++)
        if ((order->descriptors >> i & 1) && next < n)
            *places[i] = fds[next++];
    while (next < n) /* more than were named: never sent */
        (void)close(fds[next++]);
}

ssize_t replacement_receive(int link, struct guardian_order *order, struct replacement *ret)
{
    struct iovec data = {.iov_base = order, .iov_len = sizeof(*order)};
    union control control;
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    int fds[N_SENT_MAX], n = 0;

    *ret = (struct replacement){
        .worker = {.stdio = {-1, -1, -1}, .notice_fd = -1, .state_fd = -1, .import_fd = -1, .key_fd = -1},
        .texts_fd = -1};
    ssize_t got = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got <= 0 || (order->kind != GUARDIAN_START && order->kind != GUARDIAN_BEGIN))
        return got;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_type == SCM_RIGHTS) {
        n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
    }
    if (order->kind == GUARDIAN_BEGIN) {
        ret->texts_fd = n > 0 ? fds[0] : -1;
        return got;
    }
    int n_named = 1 + __builtin_popcount(order->descriptors);
    int r = n > 0 ? map_texts(fds[0], ret) : -EMFILE;
    if (!r && n < n_named)
        r = -EMFILE; /* the kernel leaves out descriptors for which there is no free number */
    if (n > 0) {
        ret->texts_fd = fds[0];
        take_descriptors(order, fds + 1, n - 1, ret);
    }
    order->error = -r;
    return got;
}

void replacement_finish(struct replacement *r)
{
    int *places[N_FDS];

    list_descriptors(&r->worker, places);
    for (int i = 0; i < N_FDS; i++)
        if (*places[i] >= 0)
            (void)close(*places[i]); /* the worker has a copy */
    if (r->texts_fd >= 0)
        (void)close(r->texts_fd); /* as above */
    if (r->texts)
        (void)munmap(r->texts, r->texts_size); /* as above */
}
