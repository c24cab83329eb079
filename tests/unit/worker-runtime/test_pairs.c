/*
 * Connections with all hosts are made on the thread of the collectives while a message that fails cuts all connections on
 * its own. The two functions run here on two threads with nothing that orders them, for ThreadSanitizer.
 */

#include "worker-runtime/net/inter_host_sock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"
#include "worker-runtime/net/net_link_sock.h"

enum { HOSTS = 8, ROUNDS = 50 };

static struct net_link link_to_all;
static atomic_bool is_made; /* relaxed: it orders nothing */

/* In place of connections. */
int __wrap_net_connect(struct net *net, const struct net_wait *wait, struct net_hello hello, int rank,
                       struct net_link **ret);
int __wrap_net_claim(struct net *net, const struct net_wait *wait, struct net_hello hello, int rank,
                     struct net_link **ret);

int __wrap_net_connect(struct net *net, const struct net_wait *wait, struct net_hello hello, int rank,
                       struct net_link **ret)
{
    *ret = &link_to_all;
    return 0;
}

int __wrap_net_claim(struct net *net, const struct net_wait *wait, struct net_hello hello, int rank,
                     struct net_link **ret)
{
    *ret = &link_to_all;
    return 0;
}

static void *cut_until_made(void *data)
{
    bool made;

    do {
        made = atomic_load_explicit(&is_made, memory_order_relaxed);
        (void)inter_host_break(data, 0);
    } while (!made);
    return NULL;
}

static void connections_are_seen_whole_or_not_at_all(void **state)
{
    const int keys[HOSTS] = {0, 1, 2, 3, 4, 5, 6, 7};

    link_to_all.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < ROUNDS; i++) {
        struct shm shm = {.fd = -1};
        struct inter_host s = {.shm = &shm, .before = &link_to_all, .after = &link_to_all};
        pthread_t thread;

        assert_int_equal(topology_init(&s.topology, keys, HOSTS, HOSTS, 3), 0);
        atomic_store(&is_made, false);
        assert_int_equal(pthread_create(&thread, NULL, cut_until_made, &s), 0);
        assert_int_equal(inter_host_need_pairs(&s), 0);
        atomic_store_explicit(&is_made, true, memory_order_relaxed);
        assert_int_equal(pthread_join(thread, NULL), 0);
        for (int host = 0; host < HOSTS; host++)
            assert_true((s.pairs_out[host] != NULL) == (host != 3) &&
                        (s.pairs_in[host] != NULL) == (host != 3));
        free(s.pairs_out);
        free(s.pairs_in);
        topology_finish(&s.topology);
    }
    (void)close(link_to_all.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(connections_are_seen_whole_or_not_at_all)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
