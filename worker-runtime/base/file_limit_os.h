#pragma once

/*
 * Writing and making files longer where the user has limited their size (ulimit -f), which holds for memory files, too. At the
 * limit the kernel sends SIGXFSZ, by which a rank would end without a message. These calls fail with -EFBIG instead, and
 * leave the program's action for that signal as it is. For every thread.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* As fallocate(2), begun again after a signal. 0 or -errno. */
int file_limit_allocate(int fd, uint64_t at, uint64_t size);

/* As ftruncate(2). 0 or -errno. */
int file_limit_resize(int fd, uint64_t size);

/* As write(2): the number of bytes, or -errno. */
ssize_t file_limit_write(int fd, const void *bytes, size_t n);
