/*
 * A worker that writes much: chatter BYTES [stream], numbered lines of varying length to stdout (1) or
 * stderr (2), "RANK NUMBER text". Quick, so that whoever reads it is the slow part.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");
    long long left = argc > 1 ? atoll(argv[1]) : 0;
    FILE *out = argc > 2 && atoi(argv[2]) == 2 ? stderr : stdout;
    static char buffer[1 << 16], filling[200];

    (void)setvbuf(out, buffer, _IOFBF, sizeof(buffer));
    memset(filling, '.', sizeof(filling) - 1);
    for (long long i = 0; left > 0; i++) {
        int n = fprintf(out, "%s %lld %.*s\n", rank ? rank : "-", i, (int)(i * 37 % 199), filling);
        if (n < 0) {
            perror("chatter");
            return 9;
        }
        left -= n;
    }
    return fflush(out) == 0 ? 0 : 9;
}
