#include "rendezvous/daemon/daemon_secrets_os.h"

#include <dirent.h>
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "rendezvous/session/session_message.h"

enum { JOBS_MAX = 100000 };

struct job_secret {
    char job[SESSION_JOB_SIZE]; /* "" for the secret of all jobs */
    struct secret secret;
};

struct daemon_secrets {
    void *items; /* of struct job_secret: a tree of tsearch() */
    size_t n;
};

static int compare_jobs(const void *a, const void *b)
{
    return strcmp(((const struct job_secret *)a)->job, ((const struct job_secret *)b)->job);
}

static void free_job_secret(void *data)
{
    struct job_secret *item = data;

    secret_finish(&item->secret);
    free(item);
}

static int read_job(struct daemon_secrets *s, const char *job, const char *path,
                    char error[SECRET_ERROR_SIZE])
{
    struct job_secret *item = s->n < JOBS_MAX ? calloc(1, sizeof(*item)) : NULL;

    if (item)
        text_copy(item->job, SESSION_JOB_SIZE, job);
    struct job_secret **at = item ? tsearch(item, &s->items, compare_jobs) : NULL;
    if (!at) {
        free(item);
        (void)snprintf(error, SECRET_ERROR_SIZE,
                       "no memory for the secret in %.300s, or more than %d of them", path, JOBS_MAX);
        return -ENOMEM;
    }
    if (*at != item) {
        free(item); /* the folder changed while it was read: the name came twice */
        return 0;
    }
    int r = secret_read_file(&item->secret, path, SECRET_FILE_PRIVATE, error);
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
    *ret = s;
    return 0;
}

static const struct job_secret *find_job_secret(const struct daemon_secrets *s, const char *job)
{
    struct job_secret wanted = {0}, **found;

    text_copy(wanted.job, sizeof(wanted.job), job);
    found = tfind(&wanted, &s->items, compare_jobs);
    return found ? *found : NULL;
}

int daemon_secrets_find(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret)
{
    struct daemon_secrets *const *s = data;
    const struct job_secret *found = find_job_secret(*s, job);
    const char *why;

    if (!found)
        found = find_job_secret(*s, "");

    TRY(found ? key_derive(ret, found->secret.bytes, found->secret.size, purpose, job, &why) : 0);
    return found != NULL;
}

size_t daemon_secrets_count(const struct daemon_secrets *s)
{
    return s->n;
}

void daemon_secrets_free(struct daemon_secrets *s)
{
    if (!s)
        return;
    tdestroy(s->items, free_job_secret);
    free(s);
}
