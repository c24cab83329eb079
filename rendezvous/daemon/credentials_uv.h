#pragma once

/*
 * What crund's agents have to prove: secrets, or certificates. Both are read before crund serves, and again after SIGHUP, by a
 * thread: a disk that does not answer must not stop the loop. When a file cannot be used then, all stay as they
 * were, and a line of the log names the file. Sessions that are open stay so: what was proved for them was right then.
 */

#include <stdbool.h>
#include <uv.h>

#include "proto/certificate_files_os.h"
#include "rendezvous/server/server_security.h"

struct daemon_options;
struct daemon_secrets;
struct server;

struct credentials {
    const struct daemon_options *options;
    uv_loop_t *loop;
    struct server *server;          /* of crund, once it is there; it gets new certificates */
    struct daemon_secrets *secrets; /* NULL: none */
    struct tls_context *certified;  /* NULL: none */
    bool is_reading;
    bool read_again; /* asked for meanwhile */
};

bool credentials_are_wanted(const struct daemon_options *options);

/* At the start; it blocks. 0, or -errno and a sentence. */
int credentials_read(struct credentials *c, char error[CERTIFICATE_ERROR_SIZE]);

/* Reads them again, beside the loop. */
void credentials_reread(struct credentials *c);

/* For server_create(); c has to outlive the server. */
struct server_security credentials_security(struct credentials *c);

void credentials_finish(struct credentials *c);
