#include "rendezvous/daemon/credentials_uv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "proto/tls_openssl.h"
#include "rendezvous/daemon/daemon_options.h"
#include "rendezvous/daemon/daemon_secrets_os.h"
#include "rendezvous/server/server_uv.h"

_Static_assert((int)CERTIFICATE_ERROR_SIZE >= (int)SECRET_ERROR_SIZE, "one text for the faults of both");

/* A thread's reading. */
struct reading {
    uv_work_t work;
    struct credentials *credentials;
    struct daemon_secrets *secrets;
    struct tls_context *certified;
    int result;
    char error[CERTIFICATE_ERROR_SIZE];
};

bool credentials_are_wanted(const struct daemon_options *options)
{
    return options->secret_file || options->secrets || options->certificates.cert;
}

static int read_certificates(struct tls_context **ret, const struct certificate_paths *paths,
                             char error[CERTIFICATE_ERROR_SIZE])
{
    _cleanup_(certificate_files_finish) struct certificate_files files;

    TRY(certificate_files_read(&files, paths, error));
    return tls_context_server_certified(ret, &files, error);
}

static void read_credentials(struct reading *reading)
{
    const struct daemon_options *o = reading->credentials->options;

    reading->result = 0;
    if (o->certificates.cert)
        reading->result = read_certificates(&reading->certified, &o->certificates, reading->error);
    else if (o->secret_file || o->secrets)
        reading->result = daemon_secrets_read(&reading->secrets, o->secret_file, o->secrets, reading->error);
}

static void take_reading(struct credentials *c, const struct reading *reading)
{
    daemon_secrets_free(c->secrets);
    c->secrets = reading->secrets;
    tls_context_free(c->certified);
    c->certified = reading->certified;
}

int credentials_read(struct credentials *c, char error[CERTIFICATE_ERROR_SIZE])
{
    struct reading reading = {.credentials = c};

    read_credentials(&reading);
    if (reading.result == 0)
        take_reading(c, &reading);
    else
        memcpy(error, reading.error, CERTIFICATE_ERROR_SIZE);
    return reading.result;
}

static void on_reading_thread(uv_work_t *work)
{
    read_credentials(work->data);
}

static void report_reading(const struct reading *reading)
{
    const struct credentials *c = reading->credentials;

    if (reading->result < 0)
        (void)fprintf(stderr, "crund: %s; the %s stay as they were\n", reading->error,
                      c->options->certificates.cert ? "certificates" : "secrets");
    else if (c->certified)
        (void)fprintf(stderr, "crund: certificates read\n");
    else
        (void)fprintf(stderr, "crund: %zu secrets read\n", daemon_secrets_count(c->secrets));
}

static void on_reading_done(uv_work_t *work, int status)
{
    struct reading *reading = work->data;
    struct credentials *c = reading->credentials;
    bool is_over = status < 0 || !c->server; /* the loop ends */

    c->is_reading = false;
    if (!is_over && reading->result == 0) {
        take_reading(c, reading);
        if (c->certified)
            server_use_certificates(c->server, c->certified);
    }
    if (is_over) {
        daemon_secrets_free(reading->secrets);
        tls_context_free(reading->certified);
    } else {
        report_reading(reading);
    }
    free(reading);
    if (c->read_again && !is_over)
        credentials_reread(c);
}

void credentials_reread(struct credentials *c)
{
    struct reading *reading = c->is_reading ? NULL : calloc(1, sizeof(*reading));

    c->read_again = c->is_reading;
    if (!reading)
        return;
    reading->credentials = c;
    reading->work.data = reading;
    c->is_reading = uv_queue_work(c->loop, &reading->work, on_reading_thread, on_reading_done) == 0;
    if (!c->is_reading)
        free(reading);
}

struct server_security credentials_security(struct credentials *c)
{
    if (c->certified)
        return (struct server_security){.certified = c->certified, .require = true};
    return (struct server_security){
        .find_key = daemon_secrets_find, .data = &c->secrets, .require = c->options->require_secrets};
}

void credentials_finish(struct credentials *c)
{
    daemon_secrets_free(c->secrets);
    tls_context_free(c->certified);
}
