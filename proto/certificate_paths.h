#pragma once

/*
 * Where certificates are: what --tls-cert, --tls-key and --tls-ca name.
 */

struct certificate_paths {
    const char *cert; /* the certificate and its intermediate ones; NULL: none of the three */
    const char *key;  /* its private key, without a passphrase */
    const char *ca;   /* what signs the peers' certificates; NULL: peers need none */
};
