#pragma once

/*
 * A NULL-terminated array of strings that owns them, but for a borrowed end: argument vectors and environments. Like struct strbuf it
 * remembers a failed allocation, so that a caller builds the whole list and asks once (list->failed).
 */

#include <stdbool.h>
#include <stddef.h>

struct strlist {
    char **items; /* NULL while nothing was added */
    size_t n_items;
    size_t capacity;
    size_t n_borrowed; /* of the last items: another owner keeps them until the list is finished */
    bool failed;
};

__attribute__((format(printf, 2, 3))) void strlist_add(struct strlist *list, const char *format, ...);

/* As it is, without formatting. */
void strlist_add_copy(struct strlist *list, const char *string);

/* Takes over a malloc'ed string; NULL counts as a failed allocation. */
void strlist_add_owned(struct strlist *list, char *string);

/* Not copied. Nothing but borrowed strings can be added behind it. */
void strlist_add_borrowed(struct strlist *list, char *string);

void strlist_finish(struct strlist *list);
