/*
 * Runs a fuzz target without a fuzzer: once for each file named, once for each file of a folder named, or
 * once for what comes from standard input. So the committed seeds are a unit test with any compiler, and
 * AFL++ (afl-fuzz -i SEEDS -o OUT -- PROGRAM @@) can drive the same program.
 */

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void run_stream(FILE *file, const char *name)
{
    _cleanup_(buf_finish) struct buf bytes = {0};
    size_t n;

    do {
        uint8_t *to = buf_reserve(&bytes, 4096);

        if (!to)
            die(name);
        n = fread(to, 1, 4096, file);
        buf_commit(&bytes, n);
    } while (n > 0);
    if (ferror(file))
        die(name);
    /* A copy of exactly the right size, so that a sanitizer sees a read beyond the end. */
    uint8_t *data = malloc(buf_size(&bytes));

    if (!data)
        die(name);
    if (buf_size(&bytes) > 0)
        memcpy(data, buf_bytes(&bytes), buf_size(&bytes));
    (void)LLVMFuzzerTestOneInput(data, buf_size(&bytes)); /* 0 by definition; what is wrong aborts */
    free(data);
}

static void run_file(const char *path)
{
    FILE *file = fopen(path, "re");

    if (!file)
        die(path);
    run_stream(file, path);
    (void)fclose(file); /* was only read */
}

static int run_folder(const char *path)
{
    DIR *folder = opendir(path);
    int n = 0;

    if (!folder)
        die(path);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        char file[4096];

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(file, sizeof(file), "%s/%s", path, entry->d_name); /* cut: not found, and it dies */
        run_file(file);
        n++;
    }
    (void)closedir(folder);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;

    if (argc == 1)
        run_stream(stdin, "standard input");
    for (int i = 1; i < argc; i++) {
        struct stat status;

        if (stat(argv[i], &status) < 0)
            die(argv[i]);
        if (S_ISDIR(status.st_mode)) {
            n += run_folder(argv[i]);
        } else {
            run_file(argv[i]);
            n++;
        }
    }
    printf("%d inputs\n", n);
    return argc > 1 && n == 0; /* a folder without seeds proves nothing */
}
