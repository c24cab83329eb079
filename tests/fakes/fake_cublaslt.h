#pragma once

#include <stdbool.h>

/* What a test asks of the fake, and what the fake has seen: the symbol fake_cublaslt of the library. */
struct fake_cublaslt {
    int n_algorithms; /* how many it finds for a product; 1 at the start */
    int fails_with;   /* the status of the next products; 0: they succeed */
    bool dry;         /* products are checked and counted, and not computed */
    int n_products, n_open;
    int n_misaligned;      /* products whose operands were less aligned than promised */
    int compute, epilogue; /* of the last product */
};
