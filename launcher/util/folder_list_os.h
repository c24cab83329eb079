#pragma once

/* Names in a folder, read without malloc(): readdir() allocates, and the guardian, forked beside a thread, must not. */

struct folder_list {
    int fd;     /* -1: closed */
    int error;  /* 0, or -errno after which there were no more names */
    long n, at; /* bytes in block, and how many of them were returned */
    _Alignas(8) char block[4096];
};

/* With a formatted path. 0, or -errno: then there is nothing to close. */
__attribute__((format(printf, 2, 3))) int folder_list_open(struct folder_list *l, const char *path, ...);

/* The same with a path relative to an open folder. */
int folder_list_open_at(struct folder_list *l, int folder, const char *path);

/* The next name, with "." and "..", valid until the next call; NULL at the end and after an error. */
const char *folder_list_next(struct folder_list *l);

/* Begins anew. Returns 0 or -errno. */
int folder_list_rewind(struct folder_list *l);

void folder_list_close(struct folder_list *l);
