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

enum device_name { NO_DEVICE, BY_NUMBER, BY_UUID, MIG };

static enum device_name kind_of(const char *entry, size_t size, int n_devices)
{
    int number = visible_devices_number(entry, size);

    if (number >= 0)
        return number < n_devices ? BY_NUMBER : NO_DEVICE;
    if (size > 4 && strncmp(entry, "GPU-", 4) == 0)
        return BY_UUID;
    return size > 4 && strncmp(entry, "MIG-", 4) == 0 ? MIG : NO_DEVICE;
}

/* The same text lies before it in the list; numbers have other texts only with zeros in front. */
static bool is_repeated(const char *list, const char *entry, size_t size)
{
    const char *other;
    size_t other_size;

    while (visible_devices_next(&list, &other, &other_size) && other < entry)
        if (other_size == size && strncmp(other, entry, size) == 0)
            return true;
    return false;
}

int visible_devices_count(const char *value, int n_devices)
{
    const char *rest = value, *entry;
    enum device_name kind = NO_DEVICE;
    size_t size;
    int n = 0;

    if (!value)
        return n_devices;
    while (visible_devices_next(&rest, &entry, &size)) {
        const enum device_name next = kind_of(entry, size, n_devices);
        if (next == NO_DEVICE || (n > 0 && next != kind))
            break;
        if (is_repeated(value, entry, size))
            return 0;
        kind = next;
        n++;
    }
    return kind == MIG ? 1 : n;
}
