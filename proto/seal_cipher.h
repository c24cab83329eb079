#pragma once

/* The ciphers of sealed records (record_seal_openssl.h), by their numbers on the wire (net_frame.h). */
enum seal_cipher {
    SEAL_CIPHER_NONE,
    SEAL_CIPHER_AES,    /* AES-256-GCM */
    SEAL_CIPHER_CHACHA, /* ChaCha20-Poly1305 */
    SEAL_CIPHER_COUNT
};
