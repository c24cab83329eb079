/*
 * What the sockets alone cost: an epoll loop that sends back whatever arrives. Prints its port.
 */

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 1024, SIZE = 64 * 1024 };

static uint8_t bytes[SIZE];

static void accept_one(int epoll, int listener)
{
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    if (fd < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* only a speed-up */
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        (void)close(fd); /* the load generator notices */
}

static void echo(int fd)
{
    ssize_t n = read(fd, bytes, sizeof(bytes));

    /* The load generator never sends more than it reads back, so the socket takes it all. */
    if (n <= 0 || write(fd, bytes, (size_t)n) != n)
        (void)close(fd);
}

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS];

    if (listener < 0 || epoll < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, SOMAXCONN) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0) {
        perror("echo_server");
        return 1;
    }
    (void)printf("echo_server: listening on 127.0.0.1:%u\n", ntohs(address.sin_port));
    (void)fflush(stdout); /* the reader would time out */
    for (;;) {
        int n = epoll_wait(epoll, events, EVENTS, -1);

        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener)
                accept_one(epoll, listener);
            else
                echo(events[i].data.fd);
        }
    }
}
