#pragma once

/*
 * The pieces of JSON that a header of safetensors is made of: strings, lists of whole numbers, objects. A
 * scan goes over untrusted bytes once, from `at` to `end`; whatever is not expected is refused where it
 * stands.
 */

#include "worker-runtime/checkpoint/safetensors.h"

struct scan {
    const uint8_t *file;
    size_t at, end;
    char *text; /* where decoded strings go; as large as the header, which they cannot outgrow */
    size_t text_size;
    const char *why; /* it was refused, a literal */
};

/* Notes why and returns SAFETENSORS_E_BAD, which all of these do with what they refuse. */
int scan_refuse(struct scan *s, const char *why);

void scan_space(struct scan *s);
/* A string becomes C text, so a NUL in it is refused. *ret_at and *ret_size: its raw bytes in the file. */
int scan_string(struct scan *s, const char **ret_text, size_t *ret_at, size_t *ret_size);
/* [1,2,3], at most max numbers. */
int scan_numbers(struct scan *s, uint64_t *numbers, int max, int *ret_n);
/* Calls entry for each key of an object whose "{" comes next; ends with its first result that is not 0. */
int scan_object(struct scan *s, int (*entry)(void *data, const char *key), void *data);
