#pragma once

/*
 * The rounds' state in etcd, which several crunds share: one of them leads and decides, the others send agents to it
 * (etcd_leader.h decides which, etcd_client_os.h has the threads that ask etcd). crunds know of each other by the leader's key alone.
 *
 * Failure: without libcurl or threads rounds_etcd_open() fails; etcd that does not answer is logged, and nothing is decided
 * until it does.
 */

struct etcd_access;
struct rounds_shell;
struct rounds_state;

/* url: etcd://HOST:PORT,.../PREFIX. access: copied; the texts that it points to live as long. 0 or -errno; a sentence was
 * logged. */
int rounds_etcd_open(struct rounds_state **ret, struct rounds_shell *shell, const char *url,
                     const struct etcd_access *access);
