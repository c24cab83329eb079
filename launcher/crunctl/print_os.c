#include "launcher/crunctl/print_os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static int fail_to_print(const char *why)
{
    (void)fprintf(stderr, "crunctl: cannot write to standard output: %s\n", why);
    return 1;
}

int print_text(const char *text)
{
    if (!text)
        return fail_to_print("out of memory");
    if (fputs(text, stdout) >= 0 && fflush(stdout) == 0)
        return 0;
    int code = fail_to_print(strerror(errno));
    clearerr(stdout); /* print_end() does not report it again */
    return code;
}

/* DEL, or of C1 in UTF-8: one or two bytes. */
static unsigned code_of(const char *at, size_t n)
{
    const unsigned char *c = (const unsigned char *)at;

    return n == 2 ? (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu) : c[0];
}

int print_json_line(const char *json)
{
    if (!json)
        return print_text(NULL);
    for (const char *c = json; *c;) {
        size_t n = text_control_size(c);

        if (n > 0)
            (void)printf("\\u%04x", code_of(c, n)); /* the last call reports what failed */
        else
            (void)putchar(*c);
        c += n > 0 ? n : 1;
    }
    return print_text("\n");
}

int print_end(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return fail_to_print(strerror(errno));
}
