#pragma once

/*
 * The files of a certificate in memory, as they are: PEM texts, not looked into. Reading them may wait for a disk.
 */

#include "proto/certificate_paths.h"
#include "proto/secret_os.h"

enum { CERTIFICATE_ERROR_SIZE = SECRET_ERROR_SIZE };

struct certificate_files {
    struct certificate_paths paths; /* for messages */
    struct secret cert, key, ca;
};

/* 0; -EPERM for a key that all users can read, or another -errno: error has a sentence that names the file and the remedy. */
int certificate_files_read(struct certificate_files *ret, const struct certificate_paths *paths,
                           char error[CERTIFICATE_ERROR_SIZE]);

/* Overwrites the key. */
void certificate_files_finish(struct certificate_files *f);
