#include "launcher/watch/nccl_state_sock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "proto/connect_sock.h"

enum { RAS_PORT = 28028, RAS_MS = 2000 };
enum { RAS_BLOCK = 64 << 10, RAS_TEXT_MAX = 256 << 10, RAS_JSON_MAX = 8 << 20 }; /* bytes */

void nccl_state_trigger(char *const *environment, int rank_base, int n_workers)
{
    const char *prefix = envp_get(environment, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    char path[4096];

    for (int i = 0; prefix && *prefix && i < n_workers; i++) {
        int n = snprintf(path, sizeof(path), "%s%d.pipe", prefix, rank_base + i);
        struct stat stat;

        /* Without a reader the open fails at once. */
        _cleanup_close_ int fd =
            n > 0 && (size_t)n < sizeof(path) ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
        if (fd < 0 || fstat(fd, &stat) < 0 || !S_ISFIFO(stat.st_mode))
            continue; /* a file that was left there is not written to */
        if (write(fd, "1\n", 2) < 0)
            continue; /* it is full: the recorder has been asked already */
    }
}

/* "127.0.0.1:28028"; a name would have to be looked up, so it is not followed. */
static bool ras_address(const char *text, struct sockaddr_in *ret)
{
    char host[64];
    unsigned port = RAS_PORT;

    *ret = (struct sockaddr_in){.sin_family = AF_INET};
    if (!text || !*text || strncmp(text, "localhost:", 10) == 0) {
        ret->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (text && *text)
            port = (unsigned)strtoul(text + 10, NULL, 10);
    } else if (sscanf(text, "%63[0-9.]:%u", host, &port) != 2 ||
               inet_pton(AF_INET, host, &ret->sin_addr) != 1) {
        return false;
    }
    ret->sin_port = htons((uint16_t)port);
    return port > 0 && port <= UINT16_MAX;
}

/* answer: all bytes before the end, the deadline or n_max. */
static void ask(char *const *environment, const char *request, size_t n_max, int64_t deadline_ns,
                struct buf *answer)
{
    struct sockaddr_in ras;
    const struct addrinfo address = {
        .ai_family = AF_INET, .ai_addr = (struct sockaddr *)&ras, .ai_addrlen = sizeof(ras)};
    _cleanup_close_ int fd = -1;

    if (!ras_address(envp_get(environment, "NCCL_RAS_ADDR"), &ras) ||
        sock_connect_address(&address, -1, deadline_ns, &fd) != 0 ||
        send(fd, request, strlen(request), MSG_NOSIGNAL) < 0)
        return;
    while (buf_size(answer) < n_max && sock_wait(-1, fd, POLLIN, deadline_ns) == 0) {
        uint8_t *room = buf_reserve(answer, RAS_BLOCK);
        ssize_t n = room ? recv(fd, room, RAS_BLOCK, 0) : -1;

        if (n <= 0)
            return;
        buf_commit(answer, (size_t)n);
    }
}

/* A full disk costs the file, or a part of it. */
static void write_file(const char *folder, const char *name, const struct buf *text)
{
    char path[4200];

    if (!folder || buf_size(text) == 0)
        return;
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name); /* fits */
    _cleanup_close_ int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0)
        (void)!write(file, buf_bytes(text), buf_size(text));
}

void nccl_state_write(char *const *environment, const char *folder, const struct stack_job *jobs,
                      size_t n_jobs, char line[HANG_NCCL_SIZE])
{
    int64_t deadline_ns = sock_deadline_ns(RAS_MS);
    _cleanup_(buf_finish) struct buf answer = {0}, json = {0};

    ask(environment, "set format json\nverbose status\n", RAS_JSON_MAX, deadline_ns, &answer);
    (void)nccl_ras_read((const char *)buf_bytes(&answer), buf_size(&answer), jobs, n_jobs, &json, line);
    write_file(folder, "nccl_ras.json", &json);
    buf_reset(&answer);
    ask(environment, "verbose status\n", RAS_TEXT_MAX, deadline_ns, &answer);
    write_file(folder, "nccl_ras.txt", &answer);
}
