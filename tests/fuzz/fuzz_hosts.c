/*
 * Fuzz target: lists and files of hosts, and the variables of schedulers. The first byte selects the reader. What is accepted has
 * different hosts, names and users that no command takes for an option, and bounded slots; what is refused has a sentence.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/front/hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_MAX = 512, LOOKED_AT = 200 };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static int read_text(void *data, const char *path, char **ret_text)
{
    *ret_text = strdup(data);
    return *ret_text ? 0 : -ENOMEM;
}

static int read_any(struct host_list *list, unsigned reader, char *text, char *error)
{
    static const char *const variables[] = {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS",
                                            "LSB_HOSTS",    "PE_HOSTFILE",       "SLURM_JOB_NODELIST"};
    const struct host_files files = {.read = read_text, .data = text};
    char variable[TEXT_MAX + 32] = "", *environment[] = {variable, NULL};

    if (reader == 0)
        return host_list_read(list, text, NULL, environment, &files, error); /* "auto" as well */
    if (reader == 1)
        return host_list_read(list, NULL, "file", environment, &files, error);
    (void)snprintf(variable, sizeof(variable), "%s=%s", variables[reader - 2], text); /* fits */
    free(host_list_hint(environment, &files));
    return host_list_read(list, "auto", NULL, environment, &files, error);
}

static bool is_word(const char *text)
{
    return *text && *text != '-' && !strpbrk(text, " \t\n\r@[],;$`'\"\\|&<>(){}*?!~#=");
}

static void check_hosts(const struct host_list *list)
{
    require(list->n > 0 && list->n <= HOSTS_MAX);
    for (size_t i = 0; i < list->n && i < LOOKED_AT; i++) {
        const struct host_entry *h = &list->hosts[i];
        require(is_word(h->name) && (!h->user || (is_word(h->user) && !strchr(h->user, ':'))));
        require(h->slots >= 0 && h->slots <= HOSTS_SLOTS_MAX);
        for (size_t k = 0; k < i; k++)
            require(strcmp(list->hosts[k].name, h->name) != 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_MAX], error[HOSTS_ERROR_SIZE] = "";
    struct host_list list;

    if (size == 0 || size > sizeof(text))
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    int r = read_any(&list, data[0] % 8, text, error);
    if (r == 0)
        check_hosts(&list);
    else
        require(error[0] && strlen(error) < sizeof(error) && !list.hosts && list.n == 0);
    host_list_finish(&list);
    return 0;
}
