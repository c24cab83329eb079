#pragma once

/*
 * The hint for scripts that look for the worker store elsewhere: no worker has opened the store of the generation, and a
 * Python worker is in init_process_group(). Decides when stacks are looked at: STORE_HINT_NS after all workers run, and after
 * each further such time, STORE_HINT_LOOKS times at most (imports may take minutes). Pure, with virtual time.
 */

#include <stdbool.h>
#include <stdint.h>

#define STORE_HINT_NS UINT64_C(30000000000)
enum { STORE_HINT_LOOKS = 10 };

struct store_hint {
    uint32_t generation;
    uint64_t since_ns; /* all workers run; 0: they do not */
    unsigned n_looks;
    bool is_over; /* for the generation */
};

/* is_unused: the store is served here and has had no client. True: stacks are to be looked at. */
bool store_hint_step(struct store_hint *h, uint64_t now_ns, uint32_t generation, bool is_at_work,
                     bool is_unused);
