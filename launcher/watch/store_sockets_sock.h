#pragma once

/*
 * Sockets of the workers of a node: connections to the worker store, and listening sockets of servers. The kernel lists the TCP sockets of
 * the network namespace with that remote port or state (sock_diag(7)), and the descriptors of processes lead to sockets. Nothing is
 * found where the kernel or a sandbox refuses the list. No process in state D is looked at.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct hang_rank;
struct proc_tree;

/* Sets hang_rank.store_clients. port: 0: not known; trees: of the workers of the node, rank_base the first. */
void store_sockets_find(uint16_t port, const struct proc_tree *trees, int rank_base, struct hang_rank *ranks,
                        size_t n_ranks);

/* Whether a process in a call that waits for descriptors is a server that waits for clients: a socket of the epoll instance listens, or
 * (epoll below 0) all sockets of the process do. */
bool store_sockets_serves(pid_t pid, int epoll);
