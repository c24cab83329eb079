/*
 * error.json: the file in which a worker leaves the reason of its failure, in the form that PyTorch's
 * @record writes and that crun and torchrun read. The first reason stays: what fails afterwards is a
 * consequence.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "worker-runtime/base/error.h"
#include "worker-runtime/base/file_limit_os.h"

enum {
    MESSAGE_MAX = 16 << 10,
    ESCAPED_MAX = 6 * MESSAGE_MAX + 1, /* "\u001b" is the longest */
};

/* The text inside a JSON string, cut at MESSAGE_MAX bytes. */
static void escape(const char *text, char out[ESCAPED_MAX])
{
    const unsigned char *s = (const unsigned char *)text, *end = s + strnlen(text, MESSAGE_MAX - 4);

    while (s < end) {
        size_t n = utf8_sequence(s);
        if (n == 0)
            *out++ = '?';
        else if (*s == '"' || *s == '\\')
            out += sprintf(out, "\\%c", *s);
        else if (*s < 0x20)
            out += sprintf(out, "\\u%04x", *s);
        else
            out = mempcpy(out, s, n);
        s += n ? n : 1;
    }
    *out = '\0';
}

static int write_error_file(const char *path, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), r = 0;

    if (fd < 0)
        return errno == EEXIST ? 0 : -errno;
    while (n > 0 && r == 0) {
        ssize_t written = file_limit_write(fd, bytes, n);
        if (written < 0)
            r = written == -EINTR ? 0 : (int)written;
        else
            bytes += written, n -= (size_t)written;
    }
    if (close(fd) < 0 && r == 0)
        r = -errno;
    return r;
}

int crw_error_record(const char *message)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    _cleanup_free_ char *escaped = NULL, *text = NULL;

    if (!path || !*path)
        return 0;
    escaped = malloc(ESCAPED_MAX);
    if (!escaped)
        return crw_fail_errno(-ENOMEM, "cannot write the error file %s", path);
    escape(message ? message : crw_error_message(), escaped);
    int n = asprintf(
        &text,
        "{\"message\": {\"message\": \"%s\", \"extraInfo\": {\"py_callstack\": \"%s\", \"timestamp\": \"%lld\"}}}",
        escaped, escaped, (long long)time(NULL));
    int r = n < 0 ? -ENOMEM : write_error_file(path, text, (size_t)n);
    return r < 0 ? crw_fail_errno(r, "cannot write the error file %s", path) : 0;
}
