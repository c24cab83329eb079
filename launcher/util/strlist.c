#include "launcher/util/strlist.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

static bool strlist_make_room(struct strlist *list)
{
    if (list->n_items + 1 < list->capacity)
        return true;
    size_t capacity = list->capacity ? 2 * list->capacity : 32;
    if (!array_resize(list->items, capacity))
        return false;
    list->capacity = capacity;
    return true;
}

void strlist_add_owned(struct strlist *list, char *string)
{
    assert(list->n_borrowed == 0);
    if (!string || !strlist_make_room(list)) {
        free(string);
        list->failed = true;
        return;
    }
    list->items[list->n_items++] = string;
    list->items[list->n_items] = NULL;
}

void strlist_add_borrowed(struct strlist *list, char *string)
{
    if (!strlist_make_room(list)) {
        list->failed = true;
        return;
    }
    list->n_borrowed++;
    list->items[list->n_items++] = string;
    list->items[list->n_items] = NULL;
}

void strlist_add_copy(struct strlist *list, const char *string)
{
    strlist_add_owned(list, strdup(string));
}

void strlist_add(struct strlist *list, const char *format, ...)
{
    char *string = NULL;
    va_list args;

    va_start(args, format);
    if (vasprintf(&string, format, args) < 0)
        string = NULL;
    va_end(args);
    strlist_add_owned(list, string);
}

void strlist_finish(struct strlist *list)
{
    for (size_t i = 0; i < list->n_items - list->n_borrowed; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct strlist){0};
}
