#pragma once

/*
 * The command line of crund.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/options.h"
#include "proto/certificate_paths.h"
#include "rendezvous/etcd/etcd.h"
#include "rendezvous/server/server_limits.h"
#include "rendezvous/agents/server_rounds.h"

enum { DAEMON_LISTEN_MAX = 64 };

/* Where to listen: host and port, or the path of a unix socket. */
struct daemon_address {
    char host[64]; /* numeric */
    uint16_t port;
    const char *unix_path; /* NULL: TCP */
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
    bool debug; /* every event and action of the rounds */
    struct server_limits limits;
    struct server_rounds rounds; /* its numbers; state and etcd are those above */
    unsigned drain_ms;           /* for unread replies after SIGTERM or SIGINT */
};

/*
 * Starts from the defaults. 0, or a result of base/options.h; error holds the sentence after OPTIONS_E_USAGE. Paths point into
 * argv.
 */
int daemon_options_parse(struct daemon_options *ret, char *const argv[], char *error, size_t error_size);

extern const struct option_table daemon_option_table;
