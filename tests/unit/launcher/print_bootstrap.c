/*
 * Prints the bootstrap of a front as a line for a login shell, for tests that run it:
 *   print-bootstrap VERSION EXECUTABLE copy|no-copy [MACHINE HASH]...
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/front/bootstrap.h"

int main(int argc, char **argv)
{
    struct bootstrap_build builds[8];
    struct bootstrap b = {.builds = builds};

    if (argc < 4 || argc > 4 + 2 * 8)
        return 2;
    b.version = argv[1];
    b.executable = argv[2];
    b.may_copy = strcmp(argv[3], "copy") == 0;
    for (int i = 4; i + 1 < argc; i += 2)
        builds[b.n_builds++] = (struct bootstrap_build){argv[i], argv[i + 1]};
    char *script = bootstrap_script(&b), *command = bootstrap_command(script);
    int r = command && printf("exec %s", command) > 0 && fflush(stdout) == 0 ? 0 : 1;
    free(script);
    free(command);
    return r;
}
