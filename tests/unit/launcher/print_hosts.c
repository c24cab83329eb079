/* Prints "NAME SLOTS" for each host of the host file on standard input, for the comparison with Open MPI; 1 with a sentence: refused. */

#include <stdio.h>
#include <string.h>

#include "launcher/front/hosts.h"

static int read_stdin(void *data, const char *path, char **ret_text)
{
    static char text[1 << 16];

    text[fread(text, 1, sizeof(text) - 1, stdin)] = '\0';
    *ret_text = strdup(text);
    return 0;
}

int main(void)
{
    const struct host_files files = {.read = read_stdin};
    char error[HOSTS_ERROR_SIZE];
    struct host_list list;

    if (host_list_read(&list, NULL, "-", NULL, &files, error) != 0) {
        puts(error);
        return 1;
    }
    for (size_t i = 0; i < list.n; i++)
        printf("%s %d\n", list.hosts[i].name, list.hosts[i].slots);
    host_list_finish(&list);
    return 0;
}
