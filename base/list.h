#pragma once

/*
 * Intrusive doubly linked list. A head and an unlinked entry point at themselves, so every operation
 * is total: unlinking twice does nothing.
 */

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next;
    struct list *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l;
    l->prev = l;
}

static inline bool list_is_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_append(struct list *head, struct list *entry)
{
    entry->prev = head->prev;
    entry->next = head;
    head->prev->next = entry;
    head->prev = entry;
}

static inline void list_unlink(struct list *entry)
{
    entry->prev->next = entry->next;
    entry->next->prev = entry->prev;
    list_init(entry);
}

/* From the list that holds the entry, if one does, to the end of another one, or of the same. */
static inline void list_move(struct list *head, struct list *entry)
{
    list_unlink(entry);
    list_append(head, entry);
}

#define list_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* The entry at ptr; NULL: ptr is the head of the list. */
#define list_entry_or_null(ptr, head, type, member) ((ptr) == (head) ? NULL : list_entry(ptr, type, member))

/* NULL: the list is empty. */
#define list_first(head, type, member) list_entry_or_null((head)->next, head, type, member)

/* The body unlinks no entry. */
#define list_for_each_entry(type, pos, head, member)                                                         \
    for (type *pos = list_first(head, type, member); pos;                                                    \
         pos = list_entry_or_null(pos->member.next, head, type, member))

/* The body may unlink pos, and no other entry. */
#define list_for_each_entry_safe(type, pos, head, member)                                                    \
    for (type *pos = list_first(head, type, member),                                                         \
              *pos##_next = pos ? list_entry_or_null(pos->member.next, head, type, member) : NULL;           \
         pos; pos = pos##_next,                                                                              \
              pos##_next = pos ? list_entry_or_null(pos->member.next, head, type, member) : NULL)

#define list_for_each(pos, head) for (struct list *pos = (head)->next; pos != (head); pos = pos->next)

/* The body may unlink pos. */
#define list_for_each_safe(pos, head)                                                                        \
    for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head);                            \
         pos = pos##_next, pos##_next = pos->next)
