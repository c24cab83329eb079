#pragma once

/*
 * The command line of crund.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/certificate_paths.h"
#include "rendezvous/etcd/etcd.h"
#include "rendezvous/server/server_limits.h"

struct server_rounds;

enum { DAEMON_LISTEN_MAX = 64 };

/* Where to listen: host and port, or the path of a unix socket. */
struct daemon_address {
    char host[64]; /* numeric */
    uint16_t port;
    const char *unix_path; /* NULL: TCP */
};

/* Every option with a number, in the order of daemon_options.c's table. */
enum daemon_number {
    DAEMON_MAX_CONNECTIONS,
    DAEMON_MAX_CONNECTIONS_EACH,
    DAEMON_MAX_KEYS,
    DAEMON_MAX_BYTES,
    DAEMON_MAX_JOB_BYTES,
    DAEMON_MAX_WAITERS,
    DAEMON_MAX_KEY_LENGTH,
    DAEMON_MAX_VALUE_LENGTH,
    DAEMON_MAX_LIST,
    DAEMON_MAX_MESSAGE,
    DAEMON_MAX_OUTPUT,
    DAEMON_MAX_OUTPUT_ALL,
    DAEMON_MAX_INPUT_ALL,
    DAEMON_HANDSHAKE_MS,
    DAEMON_MESSAGE_MS,
    DAEMON_DRAIN_MS,
    DAEMON_MAX_JOBS,
    DAEMON_MAX_JOBS_EACH,
    DAEMON_MAX_NODE_TIMEOUT_MS,
    DAEMON_MAX_WAIT_MS,
    DAEMON_MAX_NODES,
    DAEMON_MAX_AGENTS,
    DAEMON_GRACE_MS,
    DAEMON_NUMBER_COUNT
};

enum daemon_sandbox { DAEMON_SANDBOX_AUTO, DAEMON_SANDBOX_REQUIRE, DAEMON_SANDBOX_OFF };

struct daemon_options {
    struct daemon_address addresses[DAEMON_LISTEN_MAX];
    size_t n_addresses;
    bool is_default_address;  /* the only one is the default */
    int announce_fd;          /* where the addresses are written to; crund ends when it is closed; -1: none */
    const char *metrics_addr; /* NULL: no metrics */
    const char *state;        /* a directory, or etcd://...; NULL: nothing is kept */
    const char *advertise;    /* HOST:PORT of this crund for others; NULL: the first address */
    const char *etcd_login;   /* a file, or NULL */
    struct etcd_access etcd;  /* its login is read by the caller */
    const char *secret_file;  /* of all jobs, or NULL */
    const char *secrets;      /* folder with a file for each job, or NULL */
    struct certificate_paths certificates; /* or none */
    bool require_secrets;                  /* jobs without a secret are refused */
    enum daemon_sandbox sandbox;
    bool debug;                            /* every event and action of the rounds */
    uint64_t numbers[DAEMON_NUMBER_COUNT]; /* bytes, counts, milliseconds */
};

/* Results of parsing. */
enum {
    DAEMON_E_USAGE = 1, /* *ret_error is a sentence */
    DAEMON_E_HELP,      /* --help was asked for */
    DAEMON_E_VERSION,
};

/* Starts from the defaults. error holds the sentence after DAEMON_E_USAGE. Paths point into argv. */
int daemon_options_parse(struct daemon_options *ret, int argc, char *const argv[], char *error,
                         size_t error_size);

/* What the numbers mean to the server, and to its rounds. */
struct server_limits daemon_options_limits(const struct daemon_options *options);
struct server_rounds daemon_options_rounds(const struct daemon_options *options);

void daemon_options_help(FILE *out);
