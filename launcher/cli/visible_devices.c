#include "launcher/cli/visible_devices.h"

#include <stdlib.h>
#include <string.h>

enum { NUMBER_DIGITS_MAX = 5 };

bool visible_devices_next(const char **rest, const char **ret_entry, size_t *ret_size)
{
    const char *entry = *rest;

    if (!entry)
        return false;
    size_t n = strcspn(entry, ",");
    *rest = entry[n] ? entry + n + 1 : NULL;
    for (; n > 0 && *entry == ' '; n--)
        entry++;
    while (n > 0 && entry[n - 1] == ' ')
        n--;
    *ret_entry = entry;
    *ret_size = n;
    return true;
}

int visible_devices_number(const char *entry, size_t size)
{
    return size > 0 && size <= NUMBER_DIGITS_MAX && strspn(entry, "0123456789") >= size ? atoi(entry) : -1;
}

static bool names_device(const char *entry, size_t size, int n_devices)
{
    int number = visible_devices_number(entry, size);

    if (number >= 0)
        return number < n_devices;
    return size > 4 && (strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0);
}

int visible_devices_count(const char *value, int n_devices)
{
    const char *entry;
    size_t size;
    int n = 0;

    if (!value)
        return n_devices;
    while (visible_devices_next(&value, &entry, &size) && names_device(entry, size, n_devices))
        n++;
    return n;
}
