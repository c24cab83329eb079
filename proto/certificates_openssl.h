#pragma once

/*
 * Certificates from their PEM texts into OpenSSL. Everything that can be wrong with them before there is a peer is found
 * here: texts that are no PEM, a certificate that is not valid today, a key of another certificate or with a passphrase.
 */

#include <stdbool.h>

#include "proto/certificate_files_os.h"

struct openssl_ctx;
struct openssl_x509;

/* Of a text with the names of a certificate. */
enum { CERTIFICATE_NAMES_SIZE = 160 };

/* Sets the context's certificate, its key, and the CAs that it trusts. 0; -EINVAL or -ENOMEM: error has a sentence that names
 * the file and the remedy. */
int certificates_install(struct openssl_ctx *ctx, const struct certificate_files *files, bool is_server,
                         char error[CERTIFICATE_ERROR_SIZE]);

/* The hosts that the certificate is for, its subjectAltName, as one printable line: "DNS:localhost, IP Address:127.0.0.1". Cut off behind
 * "..." where there are many; "" where there are none. The certificate need not be one that is trusted. */
void certificates_list_names(const struct openssl_x509 *x, char ret[CERTIFICATE_NAMES_SIZE]);
