#include "launcher/watch/hang_collect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

int hang_collect_begin(struct hang_collect *c, size_t n_nodes, size_t n_ranks_max)
{
    hang_collect_finish(c);
    c->nodes = calloc(n_nodes, sizeof(*c->nodes));
    c->ranks = calloc(n_ranks_max, sizeof(*c->ranks));
    if (!c->nodes || !c->ranks) {
        hang_collect_finish(c);
        return -ENOMEM;
    }
    c->n_nodes = n_nodes;
    c->n_ranks_max = n_ranks_max;
    return 0;
}

void hang_collect_finish(struct hang_collect *c)
{
    for (size_t i = 0; c->nodes && i < c->n_nodes; i++)
        free(c->nodes[i].host);
    free(c->nodes);
    free(c->ranks);
    *c = (struct hang_collect){0};
}

static void add_piece(struct hang_collect *c, const struct hang_piece *piece)
{
    if (piece->node < 0 || (size_t)piece->node >= c->n_nodes)
        return;
    struct hang_collect_node *n = &c->nodes[piece->node];
    if (piece->piece < n->next || (n->host && piece->pieces != n->pieces) ||
        piece->n_ranks > c->n_ranks_max - c->n_ranks)
        return;
    if (!n->host)
        n->host = strdup(piece->host);
    if (!n->host)
        return;
    n->pieces = piece->pieces;
    n->next = piece->piece + 1;
    n->n_pieces++;
    for (size_t i = 0; i < piece->n_ranks; i++) {
        c->ranks[c->n_ranks] = piece->ranks[i];
        c->ranks[c->n_ranks++].host = n->host;
    }
}

size_t hang_collect_count_silent(const struct hang_collect *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_nodes; i++)
        n += !c->nodes[i].host || c->nodes[i].n_pieces < c->nodes[i].pieces;
    return n;
}

bool hang_collect_add(struct hang_collect *c, const struct hang_piece *piece)
{
    add_piece(c, piece);
    return c->n_nodes > 0 && hang_collect_count_silent(c) == 0;
}

int hang_collect_report(struct hang_collect *c, char text[HANG_TEXT_SIZE])
{
    bool stands_out = hang_sort(c->ranks, c->n_ranks);
    _cleanup_free_ char *groups = hang_text(c->ranks, c->n_ranks, stands_out);
    size_t n_silent = hang_collect_count_silent(c);

    /* At most HANG_LINES_MAX lines, which fit. */
    int n = snprintf(text, HANG_TEXT_SIZE, "%s%s", groups ? groups : "", c->nccl);
    if (n_silent > 0 && n < HANG_TEXT_SIZE)
        (void)snprintf(text + n, HANG_TEXT_SIZE - (size_t)n, "  %zu node%s not sent where all ranks are\n",
                       n_silent, n_silent == 1 ? " has" : "s have");
    return stands_out ? c->ranks[0].rank : -1;
}
