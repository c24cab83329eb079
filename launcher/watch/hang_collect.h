#pragma once

/*
 * Puts the ranks of all nodes together for one report: the work of node 0 with the pieces of all agents. Pure.
 * A lost piece costs its ranks; the report has the number of such nodes.
 */

#include <stdbool.h>
#include <stddef.h>

#include "launcher/watch/hang_report.h"

enum {
    HANG_PIECE_RANKS = 8, /* of at most 1.6 KiB each: a frame */
    HANG_HOST_SIZE = 256,
    HANG_TEXT_SIZE = 12 << 10,
};

/* What the ranks of a node are sent for. */
enum hang_purpose {
    HANG_FOR_REPORT,  /* the report on a hang */
    HANG_FOR_CRUNCTL, /* crunctl stacks */
    HANG_FOR_STALL,   /* the line about a partial stall */
    HANG_PURPOSE_COUNT
};

struct hang_piece {
    int node; /* group rank of the sender */
    enum hang_purpose purpose;
    int piece, pieces;
    char host[HANG_HOST_SIZE];
    const struct hang_rank *ranks; /* their hosts are not set */
    size_t n_ranks;
};

struct hang_collect_node {
    char *host; /* NULL: nothing has come from it */
    int n_pieces, pieces;
    int next; /* the lowest piece that is taken */
};

struct hang_collect {
    struct hang_collect_node *nodes;
    struct hang_rank *ranks;
    size_t n_nodes, n_ranks, n_ranks_max;
    char nccl[HANG_NCCL_SIZE]; /* a line of the own node (nccl_ras_json.h); "": none */
};

/* For a generation of so many nodes and ranks. 0 or -ENOMEM; then nothing is collected. */
int hang_collect_begin(struct hang_collect *c, size_t n_nodes, size_t n_ranks_max);
void hang_collect_finish(struct hang_collect *c);

/* Repeated and impossible pieces are dropped, and all pieces before hang_collect_begin(). Returns whether no node is silent any more. */
bool hang_collect_add(struct hang_collect *c, const struct hang_piece *piece);

/* Number of nodes with missing ranks. */
size_t hang_collect_count_silent(const struct hang_collect *c);

/* The report on the ranks so far, which are sorted. Returns the rank that stands out; -1: none does. */
int hang_collect_report(struct hang_collect *c, char text[HANG_TEXT_SIZE]);
