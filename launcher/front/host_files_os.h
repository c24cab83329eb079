#pragma once

/* Reads a file of hosts for struct host_files. At most HOST_FILE_MAX bytes of a regular file, within a quarter of a second. */

enum { HOST_FILE_MAX = 16 << 20 };

/* 0, or -errno; data is not used. */
int host_file_read(void *data, const char *path, char **ret_text);
