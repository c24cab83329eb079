#include "rendezvous/daemon/daemon_secrets_os.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "rendezvous/session/session_message.h"

enum { JOBS_MAX = 100000 };

struct job_secret {
    char job[SESSION_JOB_SIZE]; /* "" for the secret of all jobs */
    struct secret secret;
};

struct daemon_secrets {
    struct job_secret *items; /* sorted by job */
    size_t n, capacity;
};

static int compare_jobs(const void *a, const void *b)
{
    return strcmp(((const struct job_secret *)a)->job, ((const struct job_secret *)b)->job);
}

/* The place of a job, without a secret yet; NULL: out of memory. */
static struct job_secret *add_job(struct daemon_secrets *s, const char *job)
{
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 16;
        struct job_secret *items = realloc(s->items, capacity * sizeof(*items));

        if (!items)
            return NULL;
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->n] = (struct job_secret){0};
    text_copy(s->items[s->n].job, SESSION_JOB_SIZE, job);
    return &s->items[s->n];
}

static int read_job(struct daemon_secrets *s, const char *job, const char *path,
                    char error[SECRET_ERROR_SIZE])
{
    struct job_secret *place = s->n < JOBS_MAX ? add_job(s, job) : NULL;

    if (!place) {
        (void)snprintf(error, SECRET_ERROR_SIZE,
                       "no memory for the secret in %.300s, or more than %d of them", path, JOBS_MAX);
        return -ENOMEM;
    }
    int r = secret_read_file(&place->secret, path, SECRET_FILE_PRIVATE, error);
    s->n += r == 0;
    return r;
}

static int read_folder(struct daemon_secrets *s, const char *folder, char error[SECRET_ERROR_SIZE])
{
    DIR *d = opendir(folder);
    char path[4096];
    int r = 0;

    if (!d) {
        r = -errno;
        (void)snprintf(error, SECRET_ERROR_SIZE, "cannot read the folder of secrets %.300s: %s", folder,
                       strerror(-r));
        return r;
    }
    for (struct dirent *e = readdir(d); e && r == 0; e = readdir(d)) {
        if (e->d_name[0] == '.')
            continue;
        if (strlen(e->d_name) >= SESSION_JOB_SIZE ||
            (size_t)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name) >= sizeof(path)) {
            (void)snprintf(error, SECRET_ERROR_SIZE, "%.300s: a file's name is longer than a job's id may be",
                           folder);
            r = -ENAMETOOLONG;
        } else {
            r = read_job(s, e->d_name, path, error);
        }
    }
    (void)closedir(d); /* only read */
    return r;
}

int daemon_secrets_read(struct daemon_secrets **ret, const char *file, const char *folder,
                        char error[SECRET_ERROR_SIZE])
{
    struct daemon_secrets *s = calloc(1, sizeof(*s));
    int r = s ? 0 : -ENOMEM;

    if (!s)
        (void)snprintf(error, SECRET_ERROR_SIZE, "out of memory");
    if (r == 0 && file)
        r = read_job(s, "", file, error);
    if (r == 0 && folder)
        r = read_folder(s, folder, error);
    if (r < 0) {
        daemon_secrets_free(s);
        return r;
    }
    if (s->n > 0) /* an empty folder: there is no array */
        qsort(s->items, s->n, sizeof(*s->items), compare_jobs);
    *ret = s;
    return 0;
}

static const struct job_secret *find_job_secret(const struct daemon_secrets *s, const char *job)
{
    struct job_secret wanted = {0};
    const struct job_secret *found;

    text_copy(wanted.job, sizeof(wanted.job), job);
    found = s->n > 0 ? bsearch(&wanted, s->items, s->n, sizeof(*s->items), compare_jobs) : NULL;
    return !found && s->n > 0 && s->items[0].job[0] == '\0' ? &s->items[0] : found;
}

int daemon_secrets_find(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    struct daemon_secrets *const *s = data;
    const struct job_secret *found = find_job_secret(*s, job);
    const char *why;

    int r = found ? key_derive(ret, found->secret.bytes, found->secret.size, purpose, job, &why) : 0;

    return r < 0 ? r : found != NULL;
}

size_t daemon_secrets_count(const struct daemon_secrets *s)
{
    return s->n;
}

void daemon_secrets_free(struct daemon_secrets *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++)
        secret_finish(&s->items[i].secret);
    free(s->items);
    free(s);
}
