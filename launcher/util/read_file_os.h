#pragma once

/* Reads small files of /proc, /sys and the like, which never wait for a disk. For others there is read_disk_os.h. */

#include <stdbool.h>
#include <stddef.h>

/* At most out_size - 1 bytes, closed by a NUL, of the file with the formatted path. False, with out set to "", when the file is empty
 * or unreadable. */
__attribute__((format(printf, 3, 4))) bool read_file_text(char *out, size_t out_size, const char *path, ...);
