#include "tests/support/c/failing_alloc.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

void *__real_malloc(size_t n);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *p);

static size_t countdown;
static int fired;
static size_t live;

void failing_alloc_arm(size_t k)
{
    countdown = k;
    fired = 0;
}

int failing_alloc_fired(void)
{
    return fired;
}

size_t failing_alloc_live(void)
{
    return live;
}

static int fails_now(void)
{
    if (countdown == 0 || --countdown > 0)
        return 0;
    fired = 1;
    errno = ENOMEM;
    return 1;
}

void *__wrap_malloc(size_t n)
{
    void *p = fails_now() ? NULL : __real_malloc(n);

    live += p != NULL;
    return p;
}

void *__wrap_calloc(size_t n, size_t size)
{
    void *p;

    if (size > 0 && n > SIZE_MAX / size)
        return NULL;
    p = __wrap_malloc(n * size);
    return p ? memset(p, 0, n * size) : NULL;
}

void *__wrap_realloc(void *p, size_t n)
{
    void *fresh = fails_now() ? NULL : __real_realloc(p, n);

    live += fresh && !p;
    return fresh;
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
    if (size > 0 && n > SIZE_MAX / size)
        return NULL;
    return __wrap_realloc(p, n * size);
}

char *__wrap_strdup(const char *text)
{
    char *copy = __wrap_malloc(strlen(text) + 1);

    return copy ? strcpy(copy, text) : NULL;
}

void __wrap_free(void *p)
{
    live -= p != NULL;
    __real_free(p);
}
