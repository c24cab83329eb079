#pragma once

/*
 * The secrets of sealed records (proto/record_seal_openssl.h) between ranks of different hosts, where CRW_ENCRYPT asks for
 * them:
 *
 *   secret  HKDF-Expand(key of the generation, "libcrw sealed records" 0, hello, head of the answer, role of the sender)
 *
 * The hello and the answer hold both nonces, the ranks, the group, the purpose, the number of the link, the generation and
 * the cipher (net_frame.h).
 */

#include <stdbool.h>
#include <stdint.h>

#include "proto/secret_key.h"
#include "worker-runtime/net/net_frame.h"

/* The cipher that is fast on this CPU. Asked for here alone: it makes a program ask the CPU at its start, which takes a virtual
 * machine a tenth of a millisecond. */
enum seal_cipher net_seal_best_cipher(void);

/* The secret of the records that the rank with that role sends. False: OpenSSL is not there. */
bool net_seal_secret(const struct secret_key *of_generation, const uint8_t hello[NET_HELLO_SIZE],
                     const uint8_t answer[NET_ANSWER_HEAD], enum net_role sender, struct secret_key *ret);
