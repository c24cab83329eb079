#pragma once

/*
 * What a power cut would leave of one folder: of each file what it held at its last fsync(), under the names that the folder had at
 * its own last fsync(). The linker sends fsync() and renameat() of the program through here (meson.build); any thread may call
 * them. Files of up to 64 KiB, 64 in the folder.
 */

#include <stdatomic.h>
#include <stddef.h>

enum { SYNCED_FILES_REASON_SIZE = 512 };

/* Forgets all, and watches this folder; what is in it now counts as synced. */
void synced_files_watch(const char *folder);

/* How the folder and what a power cut would leave of it differ; "" in ret: not at all. Also once a file got its name before its
 * content was synced, or was written over where it was, which a power cut in between would have made a damaged file of that name. */
void synced_files_compare(char ret[SYNCED_FILES_REASON_SIZE]);

/* fsync() of anything waits while it is set. */
extern atomic_bool synced_files_hang;
/* fsync() of a file, or of a folder, fails with this errno; 0: it works. */
extern atomic_int synced_files_file_error, synced_files_folder_error;
/* How often /tmp was synced. */
extern atomic_uint synced_files_n_tmp;
