#pragma once

/*
 * Keys that are derived from a job's secret: HKDF with SHA-256 (RFC 5869). The secret itself leaves neither crun nor
 * crund; a worker's or an agent's key is good for one job and one purpose.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/secret_key.h"

enum {
    SECRET_MIN = 16, /* bytes; a shorter secret could be guessed from one recorded handshake */
    SECRET_MAX = 4096,
    KEY_INFO_MAX = 255,
};

/* "agent", "worker", ... */
const char *key_purpose_name(enum key_purpose purpose);

/* Derives the key for a purpose and a job ("" for KEY_ADMIN). 0; -ENOSYS: *ret_why says what OpenSSL lacks. */
int key_derive(struct secret_key *ret, const void *secret, size_t secret_size, enum key_purpose purpose,
               const char *job, const char **ret_why);

/* HMAC-SHA256 of the bytes with the key. 0 or -ENOSYS, as above. */
int key_mac(const struct secret_key *key, const void *bytes, size_t n, uint8_t ret[KEY_SIZE],
            const char **ret_why);

/* HKDF-Expand of one block, KEY_SIZE bytes; info: at most KEY_INFO_MAX bytes. False: OpenSSL is not there or refuses it. */
bool key_expand(const struct secret_key *secret, const void *info, size_t n, uint8_t ret[KEY_SIZE]);

/* Overwrites n bytes in a way that the compiler does not remove. */
void key_erase(void *p, size_t n);
