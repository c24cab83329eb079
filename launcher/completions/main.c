/* Writes the completion script for the named shell; runs during the build. */

#include <stdio.h>
#include <stdlib.h>

#include "launcher/cli/completions.h"

int main(int argc, char **argv)
{
    char *script = argc == 2 ? completions_script(argv[1]) : NULL;

    if (!script) {
        (void)fputs("usage: write-completions bash|zsh|tcsh|fish\n", stderr);
        return 2;
    }
    int failed = fputs(script, stdout) < 0 || fflush(stdout) != 0;
    free(script);
    return failed;
}
