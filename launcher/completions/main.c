/* Writes the completion script for the named shell; runs during the build. */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/cli/completions.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *shell;
        char *(*make)(void);
    } scripts[] = {{"bash", completions_bash}, {"zsh", completions_zsh}, {"fish", completions_fish}};

    for (size_t i = 0; argc == 2 && i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        if (strcmp(argv[1], scripts[i].shell) != 0)
            continue;
        char *script = scripts[i].make();
        bool fine = script && fputs(script, stdout) >= 0 && fflush(stdout) == 0;
        free(script);
        return fine ? 0 : 1;
    }
    (void)fputs("usage: write-completions bash|zsh|fish\n", stderr);
    return 2;
}
