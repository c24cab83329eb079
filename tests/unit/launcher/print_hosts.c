/* Prints "NAME SLOTS" for each host of the host file on standard input, for the comparison with Open MPI; 1 with a sentence: refused. */

#include <stdio.h>

#include "launcher/front/hosts.h"

int main(void)
{
    static char text[1 << 16];
    char error[HOSTS_ERROR_SIZE];
    struct host_list list;

    text[fread(text, 1, sizeof(text) - 1, stdin)] = '\0';
    if (host_list_parse_file(&list, text, error) != 0) {
        puts(error);
        return 1;
    }
    for (size_t i = 0; i < list.n; i++)
        printf("%s %d\n", list.hosts[i].name, list.hosts[i].slots);
    host_list_finish(&list);
    return 0;
}
