#pragma once

/*
 * Recorded TCPStore conversations (tests/data/transcripts/, format in the README there) as lists of events.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum transcript_kind {
    TRANSCRIPT_CLIENT_BYTES, /* client to server */
    TRANSCRIPT_SERVER_BYTES, /* server to client */
    TRANSCRIPT_CLIENT_CLOSE,
    TRANSCRIPT_SERVER_CLOSE, /* end of stream or reset */
    TRANSCRIPT_KIND_COUNT
};

struct transcript_event {
    enum transcript_kind kind;
    int connection; /* 0, 1, ... in order of the file's numbering */
    int line;       /* where in the file, for messages */
    uint8_t *data;  /* *_BYTES; else NULL */
    size_t size;
};

struct transcript {
    struct transcript_event *events;
    size_t n_events;
    int n_connections;
};

/* Reads one file. 0, -errno, or -EBADMSG for a line that is none of the format's; *ret_line (may be NULL)
 * then tells which. */
int transcript_read(const char *path, struct transcript *ret, int *ret_line);
void transcript_finish(struct transcript *t);

/*
 * Calls visit for each *.txt of the folder whose name starts with prefix ("" for all), in alphabetical
 * order, until one returns nonzero, and returns that. Returns -ENOENT when no file matched, -errno when
 * the folder cannot be read.
 */
int transcript_for_each(const char *folder, const char *prefix, int (*visit)(void *data, const char *path),
                        void *data);

/* The folder: $CRUN_TRANSCRIPTS, which meson sets for tests; without it, as seen from the source root. */
const char *transcript_folder(void);
