/* The start of a worker as bytes, and back. */

#include "launcher/supervise/worker_start.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/c/cmocka_fixed.h"

static char *argv[] = {(char[]){"python3"}, (char[]){""}, (char[]){"train.py"}, NULL};
static char *environment[] = {(char[]){"RANK=1"}, (char[]){"EMPTY="}, NULL};
static struct worker_attributes attributes;
static const struct worker_start start = {.file = "/usr/bin/python3",
                                          .argv = argv,
                                          .environment = environment,
                                          .fds = {-1, 11, 12, 13, -1, -1, 16, -1},
                                          .attributes = &attributes};
static const int sent[] = {21, 22, 23, 26};

static void *make_bytes(size_t *ret_size)
{
    *ret_size = worker_start_size(&start);
    void *bytes = malloc(*ret_size);

    assert_non_null(bytes);
    worker_start_put(&start, bytes);
    return bytes;
}

static void a_start_is_the_same_after_its_way_as_bytes(void **state)
{
    const int expected[SPAWN_FD_END] = {-1, 21, 22, 23, -1, -1, 26, -1};
    struct worker_start s;
    size_t size;

    attributes.is_bound = 1;
    numa_cpus_add(&attributes.cpus, 70);
    void *bytes = make_bytes(&size);
    assert_int_equal(worker_start_take(bytes, size, sent, 4, &s), 0);
    assert_string_equal(s.file, start.file);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(s.argv[i], argv[i]);
    assert_null(s.argv[3]);
    assert_string_equal(s.environment[0], "RANK=1");
    assert_string_equal(s.environment[1], "EMPTY=");
    assert_null(s.environment[2]);
    assert_memory_equal(s.fds, expected, sizeof(expected));
    assert_int_equal(s.attributes->is_bound, 1);
    assert_true(numa_cpus_has(&s.attributes->cpus, 70));
    assert_int_equal(numa_cpus_count(&s.attributes->cpus), 1);
    free(bytes);
}

static void a_start_has_exactly_the_descriptors_that_it_names(void **state)
{
    const int more[] = {21, 22, 23, 26, 27};
    struct worker_start s;
    size_t size;
    void *bytes = make_bytes(&size);

    for (int n = 0; n < 4; n++)
        assert_int_equal(worker_start_take(bytes, size, sent, n, &s), -EMFILE);
    assert_int_equal(worker_start_take(bytes, size, more, 5, &s), -EBADMSG);
    free(bytes);
}

/* In memory of exactly that size, so that a sanitizer sees what is read behind. */
static void bytes_of_any_other_size_are_refused(void **state)
{
    struct worker_start s;
    size_t size;
    void *bytes = make_bytes(&size);

    for (size_t n = 0; n <= size + 8; n++) {
        uint8_t *cut = calloc(1, n + (n == 0));
        assert_non_null(cut);
        memcpy(cut, bytes, n < size ? n : size);
        assert_int_equal(worker_start_take(cut, n, sent, 4, &s), n == size ? 0 : -EBADMSG);
        free(cut);
    }
    free(bytes);
}

static void check_refused(void (*change)(struct worker_start_head *head))
{
    struct worker_start s;
    size_t size;
    void *bytes = make_bytes(&size);

    change(bytes);
    assert_int_equal(worker_start_take(bytes, size, sent, 4, &s), -EBADMSG);
    free(bytes);
}

static void have_no_argument(struct worker_start_head *head)
{
    head->n_variables += head->n_arguments;
    head->n_arguments = 0;
}

static void have_many_arguments(struct worker_start_head *head)
{
    head->n_arguments = UINT32_MAX;
}

static void have_many_variables(struct worker_start_head *head)
{
    head->n_variables = UINT32_MAX;
}

static void have_more_of_one_list(struct worker_start_head *head)
{
    head->n_variables++;
    head->texts_at += sizeof(char *);
}

static void have_texts_elsewhere(struct worker_start_head *head)
{
    head->texts_at++; /* behind the first letter of the file */
}

static void have_an_unknown_descriptor(struct worker_start_head *head)
{
    head->descriptors ^= 1u << SPAWN_FD_END | 1u << 1; /* as many as before */
}

static void heads_that_do_not_fit_their_bytes_are_refused(void **state)
{
    check_refused(have_no_argument);
    check_refused(have_many_arguments);
    check_refused(have_many_variables);
    check_refused(have_more_of_one_list);
    check_refused(have_texts_elsewhere);
    check_refused(have_an_unknown_descriptor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_is_the_same_after_its_way_as_bytes),
        cmocka_unit_test(a_start_has_exactly_the_descriptors_that_it_names),
        cmocka_unit_test(bytes_of_any_other_size_are_refused),
        cmocka_unit_test(heads_that_do_not_fit_their_bytes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
