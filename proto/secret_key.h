#pragma once

/*
 * A key that is derived from a job's secret, and how a server finds it.
 */

#include <stdint.h>

enum { KEY_SIZE = 32 };

struct secret_key {
    uint8_t bytes[KEY_SIZE];
};

/* What a key is for. */
enum key_purpose { KEY_AGENT, KEY_WORKER, KEY_STORE, KEY_RELAY, KEY_ADMIN, KEY_PURPOSE_COUNT };

/* A server's question for the key of a purpose and a job. 1: *ret is set; 0: there is none, the job is open; -errno: there is
 * one that cannot be had now, so the job is closed. */
typedef int secret_key_find(void *data, enum key_purpose purpose, const char *job, struct secret_key *ret);
