#include "launcher/crunctl/other_nodes_sock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "launcher/crunctl/control_client_sock.h"
#include "launcher/ctl/job_status.h"
#include "launcher/crunctl/rendezvous_query_sock.h"
#include "launcher/crunctl/query_answer_json.h"
#include "launcher/crunctl/job_survey_os.h"
#include "launcher/host/job_secret_os.h"
#include "base/strbuf.h"
#include "base/time.h"
#include "proto/certificate_files_os.h"
#include "proto/tls_openssl.h"

/* Agents report within milliseconds of the first look. */
enum { REPORT_WAIT_MS = 100, REPORT_TRIES = 5 };

/* Stacks of a large job take some seconds, and a hung node is waited for 10 s. */
enum { STACKS_WAIT_MS = 500, STACKS_TRIES = 36 };

/* For each endpoint of a list at first: the longest delay of further endpoints by a stopped crund or a lost host. */
enum { LIST_PATIENCE_MS = 500 };

/* ---- the key ---- */

void survey_secret_finish(struct survey_secret *s)
{
    secret_finish(&s->secret);
    *s = (struct survey_secret){0};
}

/* NULL: there is none, or request->secret.error has a sentence. */
static const struct secret *find_secret(struct survey_options *request)
{
    struct survey_secret *s = &request->secret;

    if (!s->was_read) /* the outcome is kept: no bytes, and perhaps a sentence */
        (void)job_secret_find(&s->secret, request->secret_file, request->environment, s->error);
    s->was_read = true;
    return s->secret.bytes ? &s->secret : NULL;
}

/* NULL, with a sentence in error: unusable. Read again for each look, as certificates may have been renewed. */
static struct tls_context *context_of_certificates(const struct certificate_paths *paths,
                                                   char error[CERTIFICATE_ERROR_SIZE])
{
    _cleanup_(certificate_files_finish) struct certificate_files files;
    struct tls_context *tls;

    if (certificate_files_read(&files, paths, error) < 0 ||
        tls_context_client_certified(&tls, KEY_AGENT, NULL, &files, error) < 0)
        return NULL;
    return tls;
}

/* NULL without a usable secret: then error has a sentence. */
static struct tls_context *context_of_secret(struct survey_options *request, const char *job,
                                             char error[SECRET_ERROR_SIZE])
{
    enum key_purpose purpose = job ? KEY_AGENT : KEY_ADMIN;
    const struct secret *secret = find_secret(request);
    struct tls_context *tls = NULL;
    struct secret_key key;
    const char *why;

    (void)snprintf(error, SECRET_ERROR_SIZE, "%s", request->secret.error); /* as large */
    if (!secret)
        return NULL;
    if (key_derive(&key, secret->bytes, secret->size, purpose, job ? job : "", &why) != 0)
        (void)snprintf(error, SECRET_ERROR_SIZE, "%s", why);
    else if (tls_context_client(&tls, purpose, job ? job : "", &key, error) != 0)
        tls = NULL;
    key_erase(&key, sizeof(key));
    return tls;
}

static struct tls_context *context_for(struct survey_options *request, const char *job,
                                       char error[CERTIFICATE_ERROR_SIZE])
{
    return request->certificates.cert ? context_of_certificates(&request->certificates, error)
                                      : context_of_secret(request, job, error);
}

/* ---- asking ---- */

/* Repeats the request while reports of agents, or the stacks, are missing. */
static int ask_until_whole(const struct rendezvous_query *target, struct query_answer *ret,
                           char error[RENDEZVOUS_QUERY_ERROR_SIZE])
{
    bool stacks = target->wants_stacks;
    int r = rendezvous_query(target, ret, error);

    for (int i = 1; i < (stacks ? STACKS_TRIES : REPORT_TRIES) && r == 0; i++) {
        if (stacks ? ret->n_jobs == 0 || ret->stacks : ret->n_unreported == 0)
            break;
        sleep_ns((stacks ? STACKS_WAIT_MS : REPORT_WAIT_MS) * UINT64_C(1000000));
        query_answer_finish(ret);
        r = rendezvous_query(target, ret, error);
    }
    return r;
}

static int ask_with_key(struct rendezvous_query *target, struct survey_options *request,
                        struct query_answer *ret, char error[CERTIFICATE_ERROR_SIZE])
{
    bool is_unix = strchr(target->endpoint, '/');

    target->tls = is_unix ? NULL : context_for(request, request->job, error);
    if (!is_unix && !target->tls) {
        if (!*error)
            (void)snprintf(
                error, CERTIFICATE_ERROR_SIZE,
                "a rendezvous is asked over TCP with a secret (--secret-file, CRUN_SECRET_FILE, or "
                "~/.config/crun/secret) or certificates (--tls-cert, --tls-key and --tls-ca); or ask crund over its unix socket");
        return -EACCES;
    }
    int r = ask_until_whole(target, ret, error);
    tls_context_free(target->tls);
    return r;
}

static int ask_endpoint_of_list(struct survey_options *request, const char *from, size_t n, int patience_ms,
                                struct query_answer *ret, struct strbuf *failures)
{
    char error[CERTIFICATE_ERROR_SIZE] = "";
    _cleanup_free_ char *endpoint = strndup(from, n);
    struct rendezvous_query target = {.endpoint = endpoint,
                                      .job = request->job,
                                      .wants_stacks = request->wants_stacks,
                                      .patience_ms = patience_ms};

    if (!endpoint)
        return -ENOMEM;
    query_answer_finish(ret);
    int r = n > 0 ? ask_with_key(&target, request, ret, error) : -EINVAL;
    if (n == 0)
        (void)snprintf(error, sizeof(error), "an endpoint of the list is empty");
    if (r)
        strbuf_add(failures, "crunctl: %s: %s\n", endpoint, error);
    return r;
}

/* One after the other: several crunds have one state, and a single crund leads. 0; -ETIMEDOUT: no usable answer, and a crund was late. */
static int ask_list(struct survey_options *request, int patience_ms, struct query_answer *ret,
                    struct strbuf *failures)
{
    const char *at = request->endpoint;
    bool was_late = false;
    int r;

    do {
        size_t n = strcspn(at, ",");

        r = ask_endpoint_of_list(request, at, n, patience_ms, ret, failures);
        was_late |= r == -ETIMEDOUT;
        at += n;
    } while (r && *at++);
    return r && was_late ? -ETIMEDOUT : r;
}

/* With little patience, and after a late answer with more. */
int other_nodes_ask(struct survey_options *request, struct query_answer *ret)
{
    bool is_list = strchr(request->endpoint, ',');
    struct strbuf failures = {0};

    *ret = (struct query_answer){0};
    int r = ask_list(request, is_list ? LIST_PATIENCE_MS : CONTROL_PATIENCE_MS, ret, &failures);
    if (r == -ETIMEDOUT && is_list) {
        strbuf_finish(&failures);
        r = ask_list(request, CONTROL_PATIENCE_MS, ret, &failures);
    }
    _cleanup_free_ char *lines = strbuf_steal(&failures);
    if (r)
        (void)fputs(lines ? lines : "crunctl: out of memory\n", stderr);
    return r;
}

/* A name that another user's process has taken is passed over. */
int other_nodes_ask_front(const char *name, struct query_answer *ret)
{
    const struct rendezvous_query target = {.endpoint = name, .patience_ms = CONTROL_PATIENCE_MS};
    char error[RENDEZVOUS_QUERY_ERROR_SIZE];
    int r = ask_until_whole(&target, ret, error);

    if (r && r != -EPERM)
        (void)fprintf(stderr, "crunctl: %s: %s\n", name, error);
    return r;
}

/* The crun of the socket serves the rendezvous, so crun answers. False: another process serves the rendezvous. */
static bool ask_host(struct control_socket *s, struct query_answer *ret)
{
    for (int i = 0; i < REPORT_TRIES; i++) {
        _cleanup_(buf_finish) struct buf reply = {0};

        query_answer_finish(ret);
        if (control_client_ask(s, "nodes", CONTROL_PATIENCE_MS, &reply) != 0 ||
            query_answer_take_frames(ret, buf_bytes(&reply), buf_size(&reply)) != 0)
            return false;
        if (ret->n_unreported == 0)
            break;
        sleep_ns(REPORT_WAIT_MS * UINT64_C(1000000));
    }
    return true;
}

static bool ask_rendezvous(const struct job_status *job, struct survey_options *request,
                           struct query_answer *ret)
{
    char why[CERTIFICATE_ERROR_SIZE], error[RENDEZVOUS_QUERY_ERROR_SIZE];
    struct rendezvous_query target = {
        .endpoint = job->rendezvous, .job = job->job, .patience_ms = CONTROL_PATIENCE_MS};

    target.tls = context_for(request, job->job, why);
    int r = target.tls ? ask_until_whole(&target, ret, error) : -EACCES;
    tls_context_free(target.tls);
    return r == 0;
}

void other_nodes_add(struct job_status *job, struct survey_options *request, struct control_socket *s)
{
    struct query_answer looked = {0};

    if (job->rendezvous[0] &&
        (ask_host(s, &looked) || (!s->is_foreign && ask_rendezvous(job, request, &looked))) &&
        looked.n_jobs > 0)
        (void)job_status_take_nodes(job, &looked.jobs[0]); /* without memory the nodes are left out */
    query_answer_finish(&looked);
}
