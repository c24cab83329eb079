#pragma once

/*
 * A value of CUDA_VISIBLE_DEVICES: device numbers or UUIDs between commas. CUDA reads it up to the first entry that
 * names no device, or one in another way than the first, and shows the devices in the order of the list. It shows none
 * where an entry is repeated, and of several MIG devices only the first. Pure.
 */

#include <stdbool.h>
#include <stddef.h>

/*
 * Takes the next entry off *rest, without the spaces around it; an entry may be empty. False behind the last one.
 * *rest starts as the whole value and belongs to this function afterwards (NULL at the end).
 */
bool visible_devices_next(const char **rest, const char **ret_entry, size_t *ret_size);

/* The number that an entry consists of; -1 when it is none, or has more than five digits. */
int visible_devices_number(const char *entry, size_t size);

/* How many of n_devices physical GPUs the value leaves; all of them for NULL (the variable is not set). */
int visible_devices_count(const char *value, int n_devices);
