#pragma once

/*
 * Which snapshots of a folder stay. Pure: names and what is known of the files in, decision out.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SNAPSHOT_NAME_SIZE = 64, /* longest name of ours, and the NUL */
};

enum snapshot_state {
    SNAPSHOT_UNKNOWN, /* not examined yet */
    SNAPSHOT_VALID,
    SNAPSHOT_DAMAGED,
    SNAPSHOT_STATE_COUNT
};

struct snapshot_entry {
    uint64_t step;
    enum snapshot_state state;
};

/* snap-<step, 12 digits>.safetensors; a step with more digits takes them. */
void snapshot_name(uint64_t step, char ret_name[SNAPSHOT_NAME_SIZE]);
bool snapshot_name_parse(const char *name, uint64_t *ret_step);

/* Where a snapshot is written before it is whole: .snap-<step>.<process>.tmp */
void snapshot_temporary_name(uint64_t step, int process, char ret_name[SNAPSHOT_NAME_SIZE]);
bool snapshot_name_is_temporary(const char *name);

/* Newest first. */
void snapshot_sort(struct snapshot_entry *entries, size_t n);

/*
 * What may be deleted so that the newest `keep` >= 1 valid snapshots stay; entries are newest first.
 * Damaged ones older than those are removed; newer ones stay for a person to examine. Returns the number
 * of entries to keep; the entries behind may be removed. While an entry must be examined before that is
 * known, *ret_examine is its index and the return value n; else *ret_examine is n.
 */
size_t snapshot_plan(const struct snapshot_entry *entries, size_t n, int keep, size_t *ret_examine);
