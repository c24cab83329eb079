#pragma once

/* What a test asks of the fake, and what the fake has seen: the symbol fake_cublaslt of the library. */
struct fake_cublaslt {
    int n_algorithms; /* how many it finds for a product; 1 at the start */
    int fails_with;   /* the status of the next products; 0: they succeed */
    int n_products, n_open;
    int compute, epilogue; /* of the last product */
};
