#pragma once

/*
 * error.json, the file that a worker writes when it fails (docs/torchrun-contract.md, 7.1). Read leniently, as the writer was failing.
 */

#include <stddef.h>
#include <stdint.h>

enum { REPORT_JSON_E_BAD = 1 }; /* not JSON, or without a message */

/*
 * Takes message and time out of the file's bytes. *ret_message is malloc'ed: the traceback, or the message
 * without one. *ret_time_s is 0 when the file has none. Returns 0, REPORT_JSON_E_BAD or -ENOMEM.
 */
int report_json_read(const char *bytes, size_t n_bytes, char **ret_message, int64_t *ret_time_s);

/* The file's content with "errorCode" added inside its message (where that is an object), as torchrun copies
 * it to the error file of its own parent. Malloc'ed text, or NULL when it is not JSON. */
char *report_json_with_code(const char *bytes, size_t n_bytes, int exit_code);

/* The file of a launcher that failed itself, as torchrun writes it for its own exceptions. Malloc'ed text, or NULL. */
char *report_json_of_launcher(const char *message, int64_t time_s);
