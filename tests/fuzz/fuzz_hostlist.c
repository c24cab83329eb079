/*
 * Fuzz target: Slurm's host lists. What is taken for a list yields as many names as were counted, each not empty and
 * of letters that names are made of.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/hostlist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512], name[HOSTLIST_NAME_SIZE];
    struct hostlist_reader r;
    int n = 0, counted;

    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    counted = hostlist_count(text);
    require(hostlist_begin(&r, text) == (counted > 0));
    if (counted <= 0)
        return 0;
    for (; n < 1000 && hostlist_next(&r, name); n++)
        require(strlen(name) > 0 && strlen(name) < sizeof(name) && !strpbrk(name, "[], "));
    require(n == 1000 || n == counted);
    return 0;
}
