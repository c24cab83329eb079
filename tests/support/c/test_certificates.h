#pragma once

/*
 * The certificates of tests/support/make_certificates.sh, made once for a program and removed when it ends.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/certificate_files_os.h"

enum { TEST_PATH_SIZE = 256 };

static char test_certificates[] = "/tmp/crun-certificates-XXXXXX";

static void remove_test_certificates(void)
{
    char command[TEST_PATH_SIZE];

    (void)snprintf(command, sizeof(command), "rm -rf %s", test_certificates);
    if (system(command) != 0)
        (void)fprintf(stderr, "cannot remove %s\n", test_certificates);
}

static void make_test_certificates(void)
{
    char command[2 * TEST_PATH_SIZE];
    static bool made;

    if (made)
        return;
    made = true;
    if (!mkdtemp(test_certificates))
        abort();
    (void)snprintf(command, sizeof(command), "%s %s > /dev/null", MAKE_CERTIFICATES, test_certificates);
    if (system(command) != 0 || atexit(remove_test_certificates) != 0)
        abort();
}

/* NULL stays NULL; a name with a slash is a path already. */
static const char *test_certificate_path(char to[TEST_PATH_SIZE], const char *name, const char *suffix)
{
    if (!name)
        return NULL;
    (void)snprintf(to, TEST_PATH_SIZE, "%s/%s%s", test_certificates, name, suffix);
    return to;
}
