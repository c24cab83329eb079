#pragma once

/*
 * A secret in memory, and the file that it comes from. The memory is not part of a core file, and is overwritten when it
 * is given back.
 */

#include <stddef.h>
#include <stdint.h>

#include "proto/key_openssl.h"

struct secret {
    uint8_t *bytes; /* a mapping of its own; NULL: there is no secret */
    size_t size, room;
};

enum { SECRET_ERROR_SIZE = 512 };

/* How a file's mode is judged. */
enum secret_file_rule {
    SECRET_FILE_PRIVATE, /* only its owner and group may read it */
    SECRET_FILE_ANY,     /* as a container's platform mounted it */
};

/* Reads a file of SECRET_MIN to SECRET_MAX bytes, without the newlines at its end. 0; or -errno, -EPERM for a file that all
 * users can read, -ERANGE for its length: error has a sentence that names the file and the remedy. */
int secret_read_file(struct secret *ret, const char *path, enum secret_file_rule rule,
                     char error[SECRET_ERROR_SIZE]);

/* The same from a descriptor, to its end; `name` is for the sentence. The descriptor stays open. */
int secret_read_fd(struct secret *ret, int fd, const char *name, char error[SECRET_ERROR_SIZE]);

/* n random bytes, for a caller that fills the rest of size bytes. 0 or -errno. */
int secret_make(struct secret *ret, size_t n, size_t size);

/* Reads a PEM text of less than 1 MiB; `what` ("the certificate") is for the sentence. 0 or -errno, as above. */
int secret_read_pem(struct secret *ret, const char *what, const char *path, enum secret_file_rule rule,
                    char error[SECRET_ERROR_SIZE]);

/*
 * From here on the kernel writes no core file of this process, and other processes of its user can neither trace it nor read its
 * memory: OpenSSL keeps copies of keys in places of its own. Reading a secret does this; it is for keys of other
 * origin. A program that is executed later is not affected.
 */
void secret_hide_process(void);

/* Overwrites and unmaps it. A secret without bytes is fine. */
void secret_finish(struct secret *s);
