/*
 * Plugins are found, opened, refused and closed; where there is no GPU the CUDA one loads all the same,
 * counts none and says why. argv[1]: the folder of the CUDA plugin if it was built, argv[2]: a folder with a
 * shared object that is none.
 */

#include "worker-runtime/cuda/backend_os.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker-runtime/crw.h"

#include "tests/support/c/cmocka_fixed.h"

static const char *cuda_folder, *other_folder;

static void says_where_it_looked(void **state)
{
    struct backend_plugin plugin = {0};

    assert_int_equal(setenv("CRW_PLUGIN_DIR", "/nowhere", 1), 0);
    assert_int_equal(backend_open("crw-cuda", &plugin), CRW_E_NOT_FOUND);
    assert_non_null(strstr(crw_error_message(), "/nowhere"));
    assert_non_null(strstr(crw_error_message(), "libcrw-cuda.so"));

    assert_int_equal(unsetenv("CRW_PLUGIN_DIR"), 0);
    assert_int_equal(backend_open("crw-no-such", &plugin), CRW_E_NOT_FOUND);
    assert_non_null(strstr(crw_error_message(), "CRW_PLUGIN_DIR"));
    assert_null(plugin.library);
    backend_close(&plugin);
}

static void refuses_what_is_no_plugin(void **state)
{
    struct backend_plugin plugin = {0};

    assert_int_equal(setenv("CRW_PLUGIN_DIR", other_folder, 1), 0);
    assert_int_equal(backend_open("not-a-plugin", &plugin), CRW_E_MISMATCH);
    assert_non_null(strstr(crw_error_message(), "another version"));
    assert_int_equal(backend_open("old-plugin", &plugin), CRW_E_MISMATCH);
    assert_non_null(strstr(crw_error_message(), "number 4711"));
    assert_null(plugin.library);
}

static void counts_devices(void **state)
{
    struct backend_plugin plugin = {0};
    const char *why = NULL;
    char path[4096];

    if (!cuda_folder[0])
        skip(); /* built without nvcc; the summary of the build says so */
    assert_int_equal(setenv("CRW_PLUGIN_DIR", cuda_folder, 1), 0);
    for (int i = 0; i < 2; i++) { /* opens again after it was closed */
        if (backend_open("crw-cuda", &plugin) != 0)
            fail_msg("%s", crw_error_message());
        assert_string_equal(plugin.backend->name, "cuda");
        int n = plugin.backend->count_devices(&why);
        print_message("%d devices%s%s\n", n, why[0] ? ": " : "", why);
        assert_true(n >= 0);
        assert_int_equal(n == 0, why[0] != '\0');
        backend_close(&plugin);
        assert_null(plugin.library);
    }
    (void)snprintf(path, sizeof(path), "%s/libcrw-cuda.so", cuda_folder);
    void *stayed = dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* the driver's threads may still be in it */
    assert_non_null(stayed);
    assert_int_equal(dlclose(stayed), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_where_it_looked),
        cmocka_unit_test(refuses_what_is_no_plugin),
        cmocka_unit_test(counts_devices),
    };

    if (argc != 3)
        return 2;
    cuda_folder = argv[1];
    other_folder = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
