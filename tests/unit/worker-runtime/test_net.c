/*
 * What a group over several hosts is made of, without a network: who is where, what is said, the arithmetic
 * in steps, and a chain of hosts whose links are socket pairs.
 */

#include "worker-runtime/shm/call_signature.h"
#include "worker-runtime/shm/topology.h"
#include "worker-runtime/shm/reduce_ops.h"
#include "worker-runtime/net/chain_reduce_sock.h"
#include "worker-runtime/net/peer_table.h"
#include "worker-runtime/net/net_frame.h"
#include "proto/record_seal_openssl.h"
#include "tests/unit/worker-runtime/elements.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/c/cmocka_fixed.h"

/* ---- hosts ---- */

static void hosts_are_numbered_by_their_lowest_ranks(void **state)
{
    const int keys[] = {7, 7, 3, 3, 3, 0};
    struct topology h;

    assert_int_equal(topology_init(&h, keys, 8, 6, 3), 0);
    assert_int_equal(h.n_hosts, 3);
    assert_int_equal(h.host, 1);
    assert_int_equal(h.local, 1);
    assert_int_equal(h.n_rails, 1);
    assert_true(h.in_order);
    assert_int_equal(topology_host_size(&h, 1), 3);
    assert_int_equal(topology_rank(&h, 1, 2), 4);
    assert_int_equal(topology_rank(&h, 2, 0), 5);
    assert_int_equal(topology_ahead(&h, 2, 1), 0);
    assert_int_equal(topology_ahead(&h, 0, -4), 2);
    topology_finish(&h);
}

static void ranks_of_a_host_may_be_apart(void **state)
{
    const int keys[] = {1, 0, 1, 0};
    struct topology h;

    assert_int_equal(topology_init(&h, keys, 2, 4, 3), 0);
    assert_false(h.in_order);
    assert_int_equal(h.n_rails, 2);
    assert_int_equal(topology_rank(&h, 0, 1), 2);
    assert_int_equal(topology_rank(&h, 1, 1), 3);
    assert_int_equal(h.local, 1);
    topology_finish(&h);
}

/* The schedule of an exchange, played: after all rounds everybody has every block, once, in order. */
static void play_exchange(int n)
{
    int have[64][64], count[64];

    for (int i = 0; i < n; i++) {
        have[i][0] = i;
        count[i] = 1;
    }
    for (int round = 0; round < topology_n_rounds(n); round++) {
        int blocks = topology_n_blocks(n, round), before = count[0];

        for (int i = 0; i < n; i++)
            for (int b = 0; b < blocks; b++)
                have[(i + (1 << round)) % n][before + b] = have[i][b];
        for (int i = 0; i < n; i++)
            count[i] += blocks;
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(count[i], n);
        for (int b = 0; b < n; b++)
            assert_int_equal(have[i][b], ((i - b) % n + n) % n);
    }
}

static void exchanges_reach_everybody(void **state)
{
    for (int n = 1; n <= 64; n++)
        play_exchange(n);
    assert_int_equal(topology_n_rounds(1), 0);
    assert_int_equal(topology_n_rounds(5), 3);
    assert_int_equal(topology_n_rounds(1 << TOPOLOGY_ROUNDS_MAX), TOPOLOGY_ROUNDS_MAX);
}

static bool prefers_transpose(int n_hosts, int size, size_t n_bytes)
{
    int keys[1024];
    struct topology h;
    bool r;

    for (int i = 0; i < n_hosts * size; i++)
        keys[i] = i / size;
    assert_int_equal(topology_init(&h, keys, n_hosts, n_hosts * size, 0), 0);
    r = topology_prefers_transpose(&h, n_bytes);
    topology_finish(&h);
    return r;
}

static void few_steps_are_worth_more_bytes(void **state)
{
    assert_false(prefers_transpose(2, 4, 10000)); /* as many steps, more bytes */
    assert_true(prefers_transpose(8, 1, 32768));
    assert_true(prefers_transpose(64, 8, 1024));
    assert_true(prefers_transpose(64, 8, 32768));
    assert_false(prefers_transpose(4, 128, 32768)); /* each leader would send the data of 128 ranks */
}

static void slices_cover_everything_once(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 900904, 26000001};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (int lanes = 1; lanes < 9; lanes++) {
            size_t at = 0;

            for (int i = 0; i < lanes; i++) {
                struct topology_slice slice = topology_slice(sizes[s], lanes, i);

                assert_int_equal(slice.begin, at);
                assert_true(slice.end >= slice.begin);
                assert_true(slice.end % TOPOLOGY_SLICE_UNIT == 0 || slice.end == sizes[s]);
                at = slice.end;
            }
            assert_int_equal(at, sizes[s]);
        }
    }
}

/* ---- frames ---- */

static void a_hello_comes_back(void **state)
{
    const struct net_hello said = {NET_DATA, 7, 3, 12, 5, "0123456789abcde"};
    uint8_t bytes[NET_HELLO_SIZE];
    struct net_hello heard;

    net_hello_encode(&said, bytes);
    assert_true(net_hello_decode(bytes, 13, &heard));
    assert_memory_equal(&heard, &said, sizeof(said));
    assert_false(net_hello_decode(bytes, 12, &heard)); /* there is no rank 12 then */
}

/* A cipher needs a key, and is one that there is. */
static void a_hello_names_a_cipher(void **state)
{
    for (uint32_t keyed = 0; keyed < 2; keyed++) {
        for (int cipher = 0; cipher < 5; cipher++) {
            const struct net_hello said = {
                .purpose = NET_DATA, .from = 1, .keyed = keyed, .cipher = (enum seal_cipher)cipher};
            uint8_t bytes[NET_HELLO_SIZE];
            struct net_hello heard;
            bool possible = cipher == SEAL_CIPHER_NONE ||
                            (keyed && (cipher == SEAL_CIPHER_AES || cipher == SEAL_CIPHER_CHACHA));

            net_hello_encode(&said, bytes);
            assert_int_equal(net_hello_decode(bytes, 2, &heard), possible);
            assert_true(!possible || heard.cipher == said.cipher);
        }
    }
}

/* No answer is taken for another one, and nothing else for an answer. */
static void answers_come_back(void **state)
{
    uint8_t token[NET_TOKEN], bytes[NET_TOKEN_HALF];
    enum net_answer heard;

    for (int i = 0; i < NET_TOKEN; i++)
        token[i] = (uint8_t)(7 * i);
    for (int said = 0; said < NET_ANSWER_COUNT; said++) {
        net_answer_encode(token, (enum net_answer)said, bytes);
        assert_true(net_answer_decode(bytes, token, &heard));
        assert_int_equal(heard, said);
        for (int i = 0; i < 8 * NET_TOKEN_HALF; i++) {
            bytes[i / 8] ^= (uint8_t)(1 << i % 8);
            assert_false(net_answer_decode(bytes, token, &heard));
            bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        }
    }
}

/* Every byte that is not the group's, the link's, the token's, the generation's or the nonce's is one that matters. */
static void a_changed_hello_is_refused(void **state)
{
    const struct net_hello said = {NET_CONTROL, 0, 1, 0, 0, "0123456789abcde"};
    uint8_t bytes[NET_HELLO_SIZE];
    struct net_hello heard;

    for (int i = 0; i < NET_HELLO_SIZE; i++) {
        bool free_to_differ = (i >= 20 && i < 24) || (i >= 32 && i < 52) || (i >= 56 && i < 76);

        net_hello_encode(&said, bytes);
        bytes[i] ^= 0x80;
        assert_int_equal(net_hello_decode(bytes, 2, &heard), free_to_differ);
    }
}

/* No byte of the hello, of the answer's head or of the role may be left out, and none may be in another's place. */
static void a_proof_is_of_everything(void **state)
{
    uint8_t hello[NET_HELLO_SIZE], answer[NET_ANSWER_HEAD], proved[NET_PROVED_SIZE], other[NET_PROVED_SIZE];

    for (int i = 0; i < NET_HELLO_SIZE; i++)
        hello[i] = (uint8_t)(i + 1);
    for (int i = 0; i < NET_ANSWER_HEAD; i++)
        answer[i] = (uint8_t)(i + 101);
    net_proved_encode(hello, answer, NET_ROLE_ACCEPTS, proved);
    net_proved_encode(hello, answer, NET_ROLE_CONNECTS, other);
    assert_memory_not_equal(proved, other, sizeof(proved)); /* a rank's own proof is not the other's */
    for (int i = 0; i < NET_HELLO_SIZE + NET_ANSWER_HEAD; i++) {
        uint8_t *changed = i < NET_HELLO_SIZE ? &hello[i] : &answer[i - NET_HELLO_SIZE];

        *changed ^= 1;
        net_proved_encode(hello, answer, NET_ROLE_ACCEPTS, other);
        if (memcmp(proved, other, sizeof(proved)) == 0)
            fail_msg("byte %d is not proved", i);
        *changed ^= 1;
    }
}

static void tokens_and_proofs_are_compared_whole(void **state)
{
    uint8_t a[NET_MAC] = {0}, b[NET_MAC] = {0};

    assert_true(net_bytes_equal(a, b, NET_MAC));
    for (int i = 0; i < NET_MAC; i++) {
        b[i] = 1;
        assert_false(net_bytes_equal(a, b, NET_MAC));
        assert_int_equal(net_bytes_equal(a, b, NET_TOKEN_HALF), i >= NET_TOKEN_HALF);
        b[i] = 0;
    }
}

static void news_come_back(void **state)
{
    const struct net_record said = {NET_RECORD_ENDED, 3, -9};
    uint8_t bytes[NET_RECORD_SIZE];
    struct net_record heard;

    net_record_encode(&said, bytes);
    assert_true(net_record_decode(bytes, 4, &heard));
    assert_int_equal(heard.kind, said.kind);
    assert_int_equal(heard.rank, 3);
    assert_int_equal(heard.detail, -9);
    assert_false(net_record_decode(bytes, 3, &heard));
    bytes[0] = 9;
    assert_false(net_record_decode(bytes, 4, &heard));
}

static void tables_come_together(void **state)
{
    const struct peer_table_entry first[] = {{0, {"10.0.0.1", 4000}}, {2, {"10.0.0.1", 4001}}},
                                  second[] = {{1, {"fe80::1", 9}}};
    const uint8_t token[NET_TOKEN] = "a token of the job", none[NET_TOKEN] = {0};
    size_t n_first, n_second;
    uint8_t *a = peer_table_encode(first, 2, token, &n_first),
            *b = peer_table_encode(second, 1, none, &n_second);
    struct peer_table t;

    assert_int_equal(peer_table_init(&t, 3), 0);
    assert_true(peer_table_add(&t, 1, b, n_second));
    assert_false(peer_table_is_complete(&t));
    assert_true(peer_table_add(&t, 0, a, n_first));
    assert_true(peer_table_is_complete(&t));
    assert_int_equal(t.keys[1], 1);
    assert_int_equal(t.keys[2], 0);
    assert_string_equal(t.peers[1].address, "fe80::1");
    assert_int_equal(t.peers[2].port, 4001);
    assert_memory_equal(t.token, token, NET_TOKEN);
    assert_false(peer_table_add(&t, 2, b, n_second)); /* rank 1 is on host 1 */
    peer_table_finish(&t);

    assert_int_equal(peer_table_init(&t, 2), 0);
    assert_false(peer_table_add(&t, 0, a, n_first)); /* there is no rank 2 */
    assert_false(peer_table_add(&t, 0, a, n_first - 1));
    assert_false(peer_table_add(&t, 0, a, 0));
    a[0] ^= 1;
    assert_false(peer_table_add(&t, 0, a, n_first));
    peer_table_finish(&t);
    free(a);
    free(b);
}

/* A rank is named by what it is asked for, so no root may look like another operation. */
static void signatures_of_different_calls_differ(void **state)
{
    assert_true(call_signature(OP_BROADCAST, 4096, 0) != call_signature(OP_ALL_GATHER, 0, 0));
    assert_true(call_signature(OP_BROADCAST, WORLD_MAX - 1, (UINT64_C(1) << SIGNATURE_SIZE_BITS) - 1) >>
                    SIGNATURE_SHIFT ==
                OP_BROADCAST);
    assert_true(call_signature(OP_BROADCAST, 1, 0) !=
                call_signature(OP_BROADCAST, 0, UINT64_C(1) << (SIGNATURE_SIZE_BITS - 1)));
}

static int unreachable_of(const char *a, const char *b, const char *c)
{
    struct net_peer peers[3] = {{.port = 1}, {.port = 2}, {.port = 3}};
    int keys[] = {0, 0, 1};
    const struct peer_table t = {.world_size = 3, .peers = peers, .keys = keys};

    (void)snprintf(peers[0].address, sizeof(peers[0].address), "%s", a);
    (void)snprintf(peers[1].address, sizeof(peers[1].address), "%s", b);
    (void)snprintf(peers[2].address, sizeof(peers[2].address), "%s", c);
    return peer_table_find_unreachable(&t);
}

static void loopback_addresses_are_for_one_machine(void **state)
{
    assert_int_equal(unreachable_of("10.0.0.1", "10.0.0.1", "10.0.0.2"), -1);
    assert_int_equal(unreachable_of("127.0.0.1", "127.0.1.1", "::1"), -1);
    assert_int_equal(unreachable_of("10.0.0.1", "127.0.0.1", "10.0.0.1"), 1);
    assert_int_equal(unreachable_of("127.0.1.1", "127.0.1.1", "10.0.0.2"), 0);
    assert_int_equal(unreachable_of("fd00::1", "fd00::1", "::1"), 2);
    assert_int_equal(unreachable_of("fd00::1", "fd00::1", "::ffff:127.0.0.1"), 2);
    assert_int_equal(unreachable_of("127.0.0.1", "10.0.0.1", "10.0.0.2"), 0);
}

/* ---- arithmetic in steps ---- */

enum { RANKS = 5, COUNT = 20011 };

/* What reduce() makes of all of them at once. */
static void expect_all(enum crw_dtype dtype, enum crw_op op, uint8_t data[RANKS][COUNT * 8],
                       uint8_t *expected)
{
    const void *sources[RANKS];
    void *target = expected;

    for (int i = 0; i < RANKS; i++) {
        fill_elements(dtype, data[i], COUNT, (unsigned)i);
        sources[i] = data[i];
    }
    reduce(dtype, op, sources, RANKS, &target, 1, 0, COUNT);
}

static uint8_t data[RANKS][COUNT * 8], expected[COUNT * 8], got[COUNT * 8], partial[COUNT * 8];

static void steps_make_the_same_bits(void **state)
{
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        for (int op = 0; op < CRW_OP_COUNT; op++) {
            const void *sources[RANKS];
            void *target = got;

            expect_all(dtypes[d], (enum crw_op)op, data, expected);
            for (int i = 0; i < RANKS; i++)
                sources[i] = data[i];
            for (int cut = 1; cut <= RANKS; cut++) {
                memset(got, 0, sizeof(got));
                reduce_begin(dtypes[d], (enum crw_op)op, sources, cut, 0, COUNT, partial);
                for (int i = cut; i < RANKS; i++)
                    reduce_more(dtypes[d], (enum crw_op)op, sources + i, 1, 0, COUNT, partial);
                reduce_end(dtypes[d], (enum crw_op)op, partial, RANKS, &target, 1, 0, COUNT);
                assert_memory_equal(got, expected, COUNT * reduce_element_size(dtypes[d]));
            }
        }
    }
}

/* ---- a chain ---- */

struct member {
    pthread_t thread;
    struct net_link *before, *after;
    int first, n; /* ranks */
    size_t piece; /* elements that are reduced at once, the next ones after their result */
    enum crw_dtype dtype;
    enum crw_op op;
    int result;
};

static int reduce_piece(const struct member *m, struct chain *s, size_t first, size_t count)
{
    struct chain_progress progress = {0};
    void *arrays[RANKS];
    struct chain_arrays a = {
        .dtype = m->dtype,
        .op = m->op,
        .n_ranks = RANKS,
        .count = count,
        .n_wanted = count,
        .n_passed = count,
        .n_sources = m->n,
        .n_targets = m->n,
        .sources = (const void *const *)arrays,
        .targets = arrays,
    };

    for (int i = 0; i < m->n; i++)
        arrays[i] = data[m->first + i] + first * reduce_element_size(m->dtype);
    return chain_reduce_step(s, &a, &progress, count, count);
}

static void *be_member(void *arg)
{
    struct member *m = arg;
    const struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = 20000};
    struct chain s = {
        .flow.wait = &wait, .before = m->before, .after = m->after, .ring = aligned_alloc(64, CHAIN_RING)};

    for (size_t first = 0; m->result == 0 && first < COUNT; first += m->piece)
        m->result = reduce_piece(m, &s, first, COUNT - first < m->piece ? COUNT - first : m->piece);
    free(s.ring);
    return NULL;
}

/* Two ends of a link with a small buffer in one direction. */
static void make_links(enum seal_cipher cipher, struct net_link *ret[2])
{
    const struct secret_key up = {"of the way up"}, down = {"of the way down"};
    int fds[2], small = 4096;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    for (int i = 0; i < 2; i++)
        ret[i] = net_link_new(fds[i]);
    if (cipher == SEAL_CIPHER_NONE)
        return;
    assert_int_equal(net_link_encrypt(ret[0], cipher, &up, &down), 0);
    assert_int_equal(net_link_encrypt(ret[1], cipher, &down, &up), 0);
}

/* sizes: ranks of each host, zero-terminated; pieces: by host, 0: all at once. The buffers of the links are small, so
 * that all goes in bits. */
static void run_chain(const int *sizes, const size_t *pieces, enum seal_cipher cipher, enum crw_dtype dtype,
                      enum crw_op op)
{
    struct member members[RANKS];
    struct net_link *links[2] = {0};
    int n = 0, first = 0;

    expect_all(dtype, op, data, expected);
    for (; sizes[n] > 0; first += sizes[n++]) {
        members[n] =
            (struct member){.before = links[1], .first = first, .n = sizes[n], .dtype = dtype, .op = op};
        members[n].piece = pieces[n] ? pieces[n] : COUNT;
        if (sizes[n + 1] == 0)
            continue;
        make_links(cipher, links);
        members[n].after = links[0];
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&members[i].thread, NULL, be_member, &members[i]), 0);
    for (int i = 0; i < n; i++) {
        pthread_join(members[i].thread, NULL);
        assert_int_equal(members[i].result, 0);
        net_link_close(members[i].before);
        net_link_close(members[i].after);
    }
    for (int i = 0; i < RANKS; i++)
        assert_memory_equal(data[i], expected, COUNT * reduce_element_size(dtype));
}

static void chains_make_the_bits_of_one_host(void **state)
{
    static const size_t all_at_once[RANKS];
    static const int shapes[][RANKS + 1] = {{5}, {4, 1}, {1, 4}, {2, 2, 1}, {1, 3, 1}, {1, 1, 1, 1, 1}};

    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
            for (int op = 0; op < CRW_OP_COUNT; op++)
                run_chain(shapes[s], all_at_once, SEAL_CIPHER_NONE, dtypes[d], (enum crw_op)op);
}

/* Hosts may differ in how much they reduce at once, down to the pieces of 32 rails, which are half a block: a host that
 * takes everything at once must not keep a piece back until the next one comes. */
static void hosts_may_reduce_in_different_pieces(void **state)
{
    static const int shape[] = {2, 1, 2, 0};
    static const size_t pieces[][3] = {{1000, 0, 0}, {0, 1000, 0}, {8192, 0, 8192}, {24, 8192, 0}};

    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++)
        for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
            run_chain(shape, pieces[i], SEAL_CIPHER_NONE, dtypes[d], CRW_AVG);
}

/* A record is longer than what the socket takes at once, and than what a piece or the end of a ring leaves room for. */
static void encrypted_chains_make_the_same_bits(void **state)
{
    static const int shapes[][RANKS + 1] = {{4, 1}, {1, 3, 1}, {1, 1, 1, 1, 1}};
    static const size_t pieces[][RANKS] = {{0}, {1000, 0, 8192, 24, 0}, {8192, 0, 1000, 0, 8192}};

    for (int cipher = SEAL_CIPHER_AES; cipher < SEAL_CIPHER_COUNT; cipher++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
            for (size_t p = 0; p < sizeof(pieces) / sizeof(pieces[0]); p++)
                for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++)
                    run_chain(shapes[s], pieces[p], (enum seal_cipher)cipher, dtypes[d], CRW_SUM);
}

/* The record that is under way was changed, and the chain names the link. */
static void a_changed_record_ends_the_chain(void **state)
{
    const struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = 20000};
    struct chain s = {.flow.wait = &wait};
    struct net_link *links[2];
    uint8_t record[100 + SEAL_EXTRA];
    void *target = data[0];

    make_links(SEAL_CIPHER_AES, links);
    assert_int_equal(net_link_send(links[1], data[1], 100), 100);
    assert_int_equal(net_receive(links[0]->fd, record, sizeof(record)), sizeof(record));
    record[SEAL_HEAD + 50] ^= 1;
    assert_int_equal(net_send(links[1]->fd, record, sizeof(record)), sizeof(record));
    s.after = links[0];
    assert_int_equal(chain_broadcast(&s, &target, 1, 100), -EBADMSG);
    assert_ptr_equal(s.flow.failed, links[0]);
    assert_int_equal(net_link_receive(links[0], record, 1), -EBADMSG); /* for good */
    for (int i = 0; i < 2; i++)
        net_link_close(links[i]);
}

/* Host 1 of three, whose arrays hold two pieces of four; the test is the hosts before and after. */
static void the_next_piece_goes_up_before_the_results_of_the_last_came(void **state)
{
    enum { PIECE = 1024, N = 4 * PIECE };
    const struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = 20000};
    static float own[2 * PIECE], sent[N], came[N];
    const void *sources[] = {own};
    void *targets[] = {own};
    struct chain_arrays a = {.dtype = CRW_F32,
                             .op = CRW_SUM,
                             .n_ranks = 3,
                             .sources = sources,
                             .n_sources = 1,
                             .targets = targets,
                             .n_targets = 1,
                             .count = N,
                             .n_wanted = N,
                             .n_passed = N - 1,
                             .wrap = 2 * PIECE};
    struct chain_progress progress = {0};
    struct chain s = {.flow.wait = &wait, .ring = aligned_alloc(64, CHAIN_RING)};
    int before[2], after[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, before), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, after), 0);
    s.before = &(struct net_link){.fd = before[0]};
    s.after = &(struct net_link){.fd = after[0]};
    for (int i = 0; i < N; i++)
        sent[i] = (float)i;
    assert_int_equal(net_send_all(&wait, before[1], sent, sizeof(sent)), 0);
    for (int piece = 0; piece < 4; piece++) {
        size_t ready = (size_t)(piece + 2 < 4 ? piece + 2 : 4) * PIECE, done = ((size_t)piece + 1) * PIECE;
        const float *place = own + (size_t)(piece % 2) * PIECE;

        for (int i = 0; i < 2 * PIECE; i++)
            if (piece == 0 || i / PIECE == (piece + 1) % 2)
                own[i] = 1;
        /* The results of the piece are there; those of the next one are not. */
        assert_int_equal(net_send_all(&wait, after[1], sent + (size_t)piece * PIECE, sizeof(sent) / 4), 0);
        assert_int_equal(chain_reduce_step(&s, &a, &progress, ready, done), 0);
        assert_int_equal(progress.combined, ready * sizeof(float));
        assert_memory_equal(place, sent + (size_t)piece * PIECE, sizeof(sent) / 4);
    }
    assert_int_equal(net_receive_all(&wait, after[1], came, sizeof(came)), 0);
    for (int i = 0; i < N; i++)
        assert_true(came[i] == (float)(i + 1));
    assert_int_equal(net_receive_all(&wait, before[1], came, sizeof(came) - sizeof(float)), 0);
    assert_memory_equal(came, sent, sizeof(came) - sizeof(float));
    assert_int_equal(net_receive(before[1], came, 1), 0); /* nothing more */
    for (int i = 0; i < 2; i++) {
        close(before[i]);
        close(after[i]);
    }
    free(s.ring);
}

static void a_broken_chain_is_told(void **state)
{
    const struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = 60000};
    struct chain s = {.flow.wait = &wait};
    void *target = data[0];
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    s.after = &(struct net_link){.fd = fds[0]};
    close(fds[1]);
    assert_int_equal(chain_broadcast(&s, &target, 1, 1000), NET_E_LOST);
    assert_ptr_equal(s.flow.failed, s.after);
    close(fds[0]);
}

static void a_silent_chain_is_left(void **state)
{
    struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = 20};
    struct chain s = {.flow.wait = &wait};
    void *target = data[0];
    int fds[2], interrupt[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    assert_int_equal(pipe(interrupt), 0);
    s.after = &(struct net_link){.fd = fds[0]};
    assert_int_equal(chain_broadcast(&s, &target, 1, 1000), NET_E_TIMEOUT);
    wait = (struct net_wait){.interrupt_fd = interrupt[0], .timeout_ms = 60000};
    assert_int_equal(write(interrupt[1], "x", 1), 1);
    assert_int_equal(chain_broadcast(&s, &target, 1, 1000), NET_E_INTERRUPTED);
    for (int i = 0; i < 2; i++) {
        close(fds[i]);
        close(interrupt[i]);
    }
}

/* ---- sockets ---- */

static unsigned option_of(int fd, int option)
{
    unsigned value = 99;
    socklen_t size = sizeof(value);

    assert_int_equal(getsockopt(fd, IPPROTO_TCP, option, &value, &size), 0);
    return value;
}

static bool has_option(int fd, int option)
{
    socklen_t size = sizeof(int);
    int value;

    return getsockopt(fd, IPPROTO_TCP, option, &value, &size) == 0;
}

/* On kernels that can do it for a connection: what was lost is sent again long before the kernel's 200 ms. */
static void lost_packets_are_sent_again_soon(void **state)
{
    enum { RTO_MIN_US = 45, DELACK_MAX_US = 46 }; /* of linux/tcp.h */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    if (!has_option(fd, RTO_MIN_US)) {
        close(fd);
        print_message("skipped: the kernel has no TCP_RTO_MIN_US (Linux 6.15)\n");
        skip();
    }
    net_tune(fd);
    assert_in_range(option_of(fd, RTO_MIN_US), 1000, 40000);
    assert_true(option_of(fd, DELACK_MAX_US) < option_of(fd, RTO_MIN_US));
    close(fd);
}

static void only_control_connections_limit_silence(void **state)
{
    const struct net_wait wait = {.interrupt_fd = -1, .timeout_ms = 5000};
    uint16_t port;
    int listener, fd;

    assert_int_equal(net_listen("127.0.0.1", &listener, &port), 0);
    assert_int_equal(net_dial("127.0.0.1", port, &wait, &fd), 0);
    net_tune(fd);
    assert_int_equal(option_of(fd, TCP_USER_TIMEOUT), 0);
    assert_int_equal(option_of(fd, TCP_THIN_LINEAR_TIMEOUTS), 1);
    net_limit_silence(fd, true);
    assert_int_equal(option_of(fd, TCP_USER_TIMEOUT), NET_SILENCE_MS);
    net_limit_silence(fd, false);
    assert_int_equal(option_of(fd, TCP_USER_TIMEOUT), 0);
    close(fd);
    close(listener);
    assert_int_equal(net_dial("127.0.0.1", port, &wait, &fd), -ECONNREFUSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_numbered_by_their_lowest_ranks),
        cmocka_unit_test(ranks_of_a_host_may_be_apart),
        cmocka_unit_test(exchanges_reach_everybody),
        cmocka_unit_test(few_steps_are_worth_more_bytes),
        cmocka_unit_test(slices_cover_everything_once),
        cmocka_unit_test(a_hello_comes_back),
        cmocka_unit_test(a_hello_names_a_cipher),
        cmocka_unit_test(a_changed_hello_is_refused),
        cmocka_unit_test(answers_come_back),
        cmocka_unit_test(a_proof_is_of_everything),
        cmocka_unit_test(tokens_and_proofs_are_compared_whole),
        cmocka_unit_test(news_come_back),
        cmocka_unit_test(tables_come_together),
        cmocka_unit_test(signatures_of_different_calls_differ),
        cmocka_unit_test(loopback_addresses_are_for_one_machine),
        cmocka_unit_test(steps_make_the_same_bits),
        cmocka_unit_test(chains_make_the_bits_of_one_host),
        cmocka_unit_test(hosts_may_reduce_in_different_pieces),
        cmocka_unit_test(encrypted_chains_make_the_same_bits),
        cmocka_unit_test(a_changed_record_ends_the_chain),
        cmocka_unit_test(the_next_piece_goes_up_before_the_results_of_the_last_came),
        cmocka_unit_test(a_broken_chain_is_told),
        cmocka_unit_test(a_silent_chain_is_left),
        cmocka_unit_test(lost_packets_are_sent_again_soon),
        cmocka_unit_test(only_control_connections_limit_silence),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
