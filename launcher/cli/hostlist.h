#pragma once

/*
 * Slurm's short form for many host names: "n[001-003,7],login" is n001, n002, n003, n7, login. Pure.
 *
 * A name may have several brackets ("r[0-1]n[0-3]", the last one counts fastest) and text after them. Numbers keep the
 * width that they are written with: [08-11] is 08, 09, 10, 11.
 */

#include <stdbool.h>
#include <stddef.h>

enum {
    HOSTLIST_MAX = 65536,      /* hosts in a list */
    HOSTLIST_NAME_SIZE = 256,  /* of a name, with its NUL */
    HOSTLIST_BRACKETS_MAX = 8, /* in a name */
};

struct hostlist_reader {
    const char *text; /* the name that is being counted through */
    const char *next; /* what follows it */
    size_t n_left;    /* of HOSTLIST_MAX */
    size_t at[HOSTLIST_BRACKETS_MAX],
        n[HOSTLIST_BRACKETS_MAX]; /* which element of each bracket, of how many */
    int n_brackets;
};

/* text must outlive the reader. False: it is no host list (or one of too many hosts, or empty). */
bool hostlist_begin(struct hostlist_reader *r, const char *text);

/* The next name, until there is none. (A list that hostlist_begin() has taken has no surprises.) */
bool hostlist_next(struct hostlist_reader *r, char name[HOSTLIST_NAME_SIZE]);

/* How many names there are; -1: it is no host list. */
int hostlist_count(const char *text);
