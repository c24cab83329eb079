/*
 * Reader of recorded TCPStore conversations. Lines are "C: hex", "S2: hex", "C! close", "S1! reset" or
 * comments; a line may be as long as memory allows. Whatever else stands there is an error: a test that
 * skips what it cannot read would prove less than it says.
 */

#include "tests/support/c/transcript.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

static void cleanup_file(FILE **f)
{
    if (*f)
        (void)fclose(*f); /* opened for reading: nothing to lose */
}

const char *transcript_folder(void)
{
    const char *folder = getenv("CRUN_TRANSCRIPTS");

    return folder ? folder : "tests/data/transcripts";
}

void transcript_finish(struct transcript *t)
{
    for (size_t i = 0; i < t->n_events; i++)
        free(t->events[i].data);
    free(t->events);
    *t = (struct transcript){0};
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

static int parse_hex(const char *text, struct transcript_event *event)
{
    size_t n_digits = strlen(text);
    _cleanup_free_ uint8_t *data = NULL;

    if (n_digits == 0 || n_digits % 2 != 0)
        return -EBADMSG;
    data = malloc(n_digits / 2);
    if (!data)
        return -ENOMEM;
    for (size_t i = 0; i < n_digits / 2; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

        if (high < 0 || low < 0)
            return -EBADMSG;
        data[i] = (uint8_t)(high << 4 | low);
    }
    event->data = steal_ptr(data);
    event->size = n_digits / 2;
    return 0;
}

/* "C", "S", "C12": the side and, numbered from 1 (left out where there is only one), the connection. */
static int parse_side(const char **text, bool *ret_client, int *ret_connection)
{
    char side = **text;
    long number = 1;
    char *end;

    if (side != 'C' && side != 'S')
        return -EBADMSG;
    ++*text;
    if (**text >= '1' && **text <= '9') {
        number = strtol(*text, &end, 10);
        *text = end;
    }
    if (number > 1000)
        return -EBADMSG;
    *ret_client = side == 'C';
    *ret_connection = (int)number - 1;
    return 0;
}

static int parse_line(const char *text, struct transcript_event *ret_event)
{
    struct transcript_event event = {0};
    bool client;
    int r = parse_side(&text, &client, &event.connection);

    if (r)
        return r;
    if (strncmp(text, ": ", 2) == 0) {
        event.kind = client ? TRANSCRIPT_CLIENT_BYTES : TRANSCRIPT_SERVER_BYTES;
        r = parse_hex(text + 2, &event);
        if (r)
            return r;
    } else if (strcmp(text, "! close") == 0) {
        event.kind = client ? TRANSCRIPT_CLIENT_CLOSE : TRANSCRIPT_SERVER_CLOSE;
    } else if (!client && strcmp(text, "! reset") == 0) {
        event.kind = TRANSCRIPT_SERVER_CLOSE;
    } else {
        return -EBADMSG;
    }
    *ret_event = event;
    return 0;
}

static int append_event(struct transcript *t, const struct transcript_event *event)
{
    struct transcript_event *events = reallocarray(t->events, t->n_events + 1, sizeof(*events));

    if (!events)
        return -ENOMEM;
    t->events = events;
    t->events[t->n_events++] = *event;
    if (event->connection >= t->n_connections)
        t->n_connections = event->connection + 1;
    return 0;
}

static int read_line(struct transcript *t, char *text, int line)
{
    struct transcript_event event;
    int r;

    text[strcspn(text, "\r\n")] = '\0';
    if (text[0] == '\0' || text[0] == '#')
        return 0;
    r = parse_line(text, &event);
    if (r)
        return r;
    event.line = line;
    r = append_event(t, &event);
    if (r)
        free(event.data);
    return r;
}

int transcript_read(const char *path, struct transcript *ret, int *ret_line)
{
    _cleanup_(cleanup_file) FILE *file = fopen(path, "re");
    _cleanup_(transcript_finish) struct transcript t = {0};
    _cleanup_free_ char *text = NULL;
    size_t capacity = 0;

    if (!file)
        return -errno;
    for (int line = 1; getline(&text, &capacity, file) >= 0; line++) {
        int r = read_line(&t, text, line);

        if (r) {
            if (ret_line)
                *ret_line = line;
            return r;
        }
    }
    if (ferror(file))
        return -EIO;
    *ret = t;
    t = (struct transcript){0};
    return 0;
}

static int is_transcript(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot && strcmp(dot, ".txt") == 0;
}

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

int transcript_for_each(const char *folder, const char *prefix, int (*visit)(void *data, const char *path),
                        void *data)
{
    struct dirent **entries;
    int n_entries = scandir(folder, &entries, is_transcript, alphasort);
    int n_visited = 0, r = 0;

    if (n_entries < 0)
        return -errno;
    for (int i = 0; i < n_entries; i++) {
        char path[4096];

        if (r == 0 && starts_with(entries[i]->d_name, prefix)) {
            (void)snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name); /* cut: not found */
            r = visit(data, path);
            n_visited++;
        }
        free(entries[i]);
    }
    free(entries);
    return n_visited > 0 ? r : -ENOENT;
}
