#pragma once

/*
 * A small state for tests of snapshots: every step has a content of its own, so that a snapshot that loads can be
 * told from the right snapshot. Also the folder that they lie in.
 */

#include "worker-runtime/checkpoint/snapshot.h"
#include "worker-runtime/checkpoint/snapshot_image.h"

#include <stdbool.h>
#include <stdint.h>

enum { CONTENT_WEIGHTS = 1000, CONTENT_WHY_MAX = 1280 };

/* As crw_snapshots_save(). The arrays it was given are overwritten at once: what was staged must be a copy. */
int content_save(struct crw_snapshots *s, uint64_t step);

/* Is this what content_save() saved for its step? */
bool content_matches(const struct crw_snapshot *s);

/*
 * Loads the newest of the folder. *ret_step: its step, 0 when there is none. ret_n_warnings: how many were
 * skipped; may be NULL. -1 with the reason in why when it cannot be loaded or is not what was saved.
 */
int content_load_newest(const char *folder, uint64_t *ret_step, int *ret_n_warnings,
                        char why[CONTENT_WHY_MAX]);

/* Checks a file that is in memory, as snapshot_image_check() does. */
int content_check_image(const uint8_t *image, size_t size, struct safetensors *ret, uint64_t *ret_step,
                        char why[SNAPSHOT_WHY_MAX]);

/* Saves one step and waits until it is durable. -1 with the reason in why. */
int content_save_durably(const char *folder, int keep, uint64_t step, char why[CONTENT_WHY_MAX]);

/* "FOLDER/NAME", in memory of its own for this thread until the next call. */
const char *content_path(const char *folder, const char *name);

/* Calls file for each name; or counts them; or removes them all. */
void folder_for_each(const char *folder, void (*file)(const char *folder, const char *name, void *data),
                     void *data);
int folder_count(const char *folder);
void folder_empty(const char *folder);
