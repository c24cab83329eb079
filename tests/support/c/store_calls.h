#pragma once

/*
 * The operations of a TCPStore that no program of ours asks for, as calls of the blocking client
 * (proto/client_sock.h): with them, tests compare the client with PyTorch's server in all it can do. Results, time-outs
 * and spans are those of client_sock.h. Keys and values have to be within the limits of the protocol.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/client_sock.h"

/* A result of store_call_queue_pop() alone, beside those of client.h: nothing was in the queue. */
enum { STORE_CALL_EMPTY = 100 };

/* Counts this client at the key "init/", as PyTorch's client with a world size does at its start. */
int store_call_join(struct client_sock *s, int64_t *ret_n_joined);

/* Sent when the call returns, not yet carried out. */
int store_call_append(struct client_sock *s, struct wire_span key, struct wire_span value);
int store_call_multi_set(struct client_sock *s, const struct wire_span *keys, const struct wire_span *values,
                         size_t n_pairs);
int store_call_queue_push(struct client_sock *s, struct wire_span key, struct wire_span value);

/* ret_values: n_keys of them. Waits until all exist. */
int store_call_multi_get(struct client_sock *s, const struct wire_span *keys, size_t n_keys, int timeout_ms,
                         struct wire_span *ret_values);
int store_call_wait(struct client_sock *s, const struct wire_span *keys, size_t n_keys, int timeout_ms);
int store_call_check(struct client_sock *s, const struct wire_span *keys, size_t n_keys, bool *ret_all);

/*
 * Stores desired if the value is expected, or if the key is missing and expected is empty. *ret_value is
 * then desired; else the value that is there; or expected, when expected is not empty and the key is missing.
 */
int store_call_compare_set(struct client_sock *s, struct wire_span key, struct wire_span expected,
                           struct wire_span desired, struct wire_span *ret_value);

int store_call_num_keys(struct client_sock *s, int64_t *ret_n_keys);

/* All keys, in no order. store_call_next_key() walks them: it leaves out those without "/", which no client can
 * name, and takes the "/" off the others. */
int store_call_list_keys(struct client_sock *s, struct wire_span *ret_list);
bool store_call_next_key(struct wire_span *list, struct wire_span *ret_key);

/* timeout_ms 0: does not wait. With a time-out, STORE_CALL_EMPTY means that another client was faster, or that a
 * key of that name exists, which ends the wait as well. */
int store_call_queue_pop(struct client_sock *s, struct wire_span key, int timeout_ms,
                         struct wire_span *ret_value);
int store_call_queue_len(struct client_sock *s, struct wire_span key, int64_t *ret_len);

/* Returns when world_size calls with this key have been made, by all clients together. A key serves once. */
int store_call_barrier(struct client_sock *s, struct wire_span key, int64_t world_size, int timeout_ms);
