#pragma once

/* Reads small files of /proc, /sys and the like, which never wait for a disk. For others there is read_disk_os.h. */

#include <stdbool.h>
#include <stddef.h>

/* At most out_size - 1 bytes, closed by a NUL. False, with out set to "", when the file is empty or unreadable. */
bool read_file_text(const char *path, char *out, size_t out_size);
