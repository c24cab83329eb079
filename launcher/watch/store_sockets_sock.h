#pragma once

/*
 * The connections of the workers of a node to the worker store: the kernel lists the TCP sockets of the network namespace with
 * that remote port (sock_diag(7)), and the descriptors of workers and descendants lead to sockets. Nothing is
 * found where the kernel or a sandbox refuses the list. No process in state D is looked at.
 */

#include <stddef.h>
#include <stdint.h>

struct hang_rank;
struct proc_tree;

/* Sets hang_rank.store_clients. port: 0: not known; trees: of the workers of the node, rank_base the first. */
void store_sockets_find(uint16_t port, const struct proc_tree *trees, int rank_base, struct hang_rank *ranks,
                        size_t n_ranks);
