/* A look at a rendezvous: what is put is what crunctl reads, in pieces and over several answers. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "base/buf.h"
#include "base/err.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/ctl/node_ranks_json.h"
#include "launcher/crunctl/query_answer_json.h"
#include "proto/frame.h"
#include "rendezvous/session/look_json.h"
#include "rendezvous/session/session_json.h"

#include "tests/support/c/cmocka_fixed.h"

static const struct look_job a_job = {
    .job = "train-7", .state = "gathering", .generation = 2, .restarts = 1, .max_restarts = 3, .n_nodes = 2};

static void put_status(struct buf *out, const char *host, int first_rank, int n_workers,
                       struct look_piece piece)
{
    struct job_status s = {0};

    assert_int_equal(job_status_add_node(&s, host, 0, (size_t)n_workers), 0);
    for (int i = 0; i < n_workers; i++) {
        s.nodes[0].workers[i].rank = first_rank + i;
        s.nodes[0].workers[i].pid = 100 + i;
        s.nodes[0].workers[i].has_usage = true;
        (void)strcpy(s.nodes[0].workers[i].state, "running");
    }
    char *json = node_ranks_to_json(&(struct node_ranks){.node = &s.nodes[0]}, 0, (size_t)n_workers);
    assert_non_null(json);
    assert_int_equal(look_put_status(out, &piece, json), 0);
    free(json);
    job_status_finish(&s);
}

static void put_node(struct buf *out, const char *host, int group_rank)
{
    struct look_node node = {.state = "running", .group_rank = group_rank, .n_workers = 2, .silent_ms = 7};

    (void)snprintf(node.host, sizeof(node.host), "%s", host);
    assert_int_equal(look_put_node(out, &node), 0);
}

static int take(struct query_answer *l, struct buf *out)
{
    int r = query_answer_take_frames(l, buf_bytes(out), buf_size(out));

    buf_finish(out);
    return r;
}

static void an_answer_is_read(void **state)
{
    struct query_answer l = {0};
    struct buf out = {0};

    (void)state;
    assert_int_equal(look_put_job(&out, &a_job), 0);
    put_node(&out, "node0", 0);
    put_status(&out, "node0", 0, 2, (struct look_piece){0, 2});
    put_status(&out, "node0", 2, 1, (struct look_piece){1, 2});
    put_node(&out, "node1", -1);
    assert_int_equal(look_put_end(&out, 2), 0);
    assert_int_equal(take(&l, &out), 0);
    assert_int_equal(l.next, 2);
    l.is_over = false;
    assert_int_equal(look_put_job(&out, &a_job), 0); /* the next answer begins with it again */
    put_node(&out, "node2", 1);
    assert_int_equal(look_put_end(&out, 0), 0);
    assert_int_equal(take(&l, &out), 0);
    assert_int_equal(l.n_jobs, 1);
    assert_int_equal(l.n_unreported, 2);
    assert_string_equal(l.jobs[0].state, "waiting");
    assert_int_equal(l.jobs[0].generation, 2);
    assert_int_equal(l.jobs[0].n_nodes_known, 3);
    assert_true(l.jobs[0].nodes[0].is_remote);
    assert_int_equal(l.jobs[0].nodes[0].n_workers, 3);
    assert_int_equal(l.jobs[0].nodes[0].workers[2].rank, 2);
    assert_true(l.jobs[0].nodes[0].workers[2].has_usage);
    assert_int_equal(l.jobs[0].nodes[1].n_workers, 0);
    query_answer_finish(&l);
}

/* Of several crunds with one state the one that leads knows the jobs. */
static void a_crund_that_does_not_lead(void **state)
{
    static const struct {
        const char *leader, *words;
    } rows[] = {{"10.0.0.7:29400", "it does not lead: 10.0.0.7:29400 does"},
                {"\033[6n", "it does not lead: ?[6n does"},
                {"", "it does not lead, and does not know which crund does"}};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct session_view view = {.kind = SESSION_VIEW_ELSEWHERE,
                                    .generation = -1,
                                    .cause = session_cause_empty(SESSION_CAUSE_NONE)};
        struct query_answer l = {0};
        struct buf out = {0};

        text_copy(view.leader, sizeof(view.leader), rows[i].leader);
        assert_int_equal(session_json_put_view(&out, &view), 0);
        assert_int_equal(query_answer_take(&l, buf_bytes(&out) + 4, buf_size(&out) - 4), -EACCES);
        assert_string_equal(l.refusal, rows[i].words);
        query_answer_finish(&l);
        buf_finish(&out);
    }
    (void)state;
}

static void refusals_and_faults(void **state)
{
    static const char *const bodies[] = {
        "{}",
        "[]",
        "{\"looked\":-1}",
        "{\"looked_job\":{}}",
        "{\"looked_job\":7}",
        "{\"looked_node\":{\"host\":\"h\",\"state\":\"s\"}}", /* no job before it */
        "{\"status\":{\"piece\":0,\"pieces\":1,\"node\":{\"workers\":[]}}}",
        "{\"view\":\"wait\"}"};
    struct session_view refused = session_view_refused("go \033[6naway");
    struct query_answer l = {0};
    struct buf out = {0};

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        assert_int_equal(query_answer_take(&l, (const uint8_t *)bodies[i], strlen(bodies[i])), -EBADMSG);
        query_answer_finish(&l);
    }
    assert_int_equal(session_json_put_view(&out, &refused), 0);
    assert_int_equal(take(&l, &out), -EACCES);
    assert_string_equal(l.refusal, "go ?[6naway");
    query_answer_finish(&l);
    assert_int_equal(look_put_job(&out, &a_job), 0); /* the end is missing */
    assert_int_equal(take(&l, &out), -EBADMSG);
    query_answer_finish(&l);
}

static void a_rendezvous_reads_looks_and_pieces(void **state)
{
    struct look_request request = {.from = 7};
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];
    struct buf out = {0};

    (void)state;
    (void)strcpy(request.job, "train-7");
    assert_int_equal(look_put_request(&out, &request), 0);
    assert_true(session_json_get_message(buf_bytes(&out) + FRAME_HEADER_SIZE,
                                         buf_size(&out) - FRAME_HEADER_SIZE, &message, error));
    assert_int_equal(message.kind, SESSION_JSON_LOOK);
    assert_string_equal(message.look.job, "train-7");
    assert_int_equal(message.look.from, 7);
    buf_reset(&out);
    put_status(&out, "h", 0, 24, (struct look_piece){63, 64});
    assert_true(session_json_get_message(buf_bytes(&out) + FRAME_HEADER_SIZE,
                                         buf_size(&out) - FRAME_HEADER_SIZE, &message, error));
    assert_int_equal(message.kind, SESSION_JSON_STATUS);
    assert_int_equal(message.piece.piece, 63);
    buf_finish(&out);
    static const char backwards[] = "{\"status\":{\"piece\":2,\"pieces\":2,\"node\":{}}}";
    assert_false(
        session_json_get_message((const uint8_t *)backwards, sizeof(backwards) - 1, &message, error));
}

static void an_agent_is_asked(void **state)
{
    struct look_watch read;
    struct buf out = {0};

    (void)state;
    for (int stacks = 0; stacks < 2; stacks++) {
        const struct look_watch watch = {.ms = 5000, .stacks = stacks};

        assert_int_equal(look_put_watch(&out, &watch), 0);
        assert_true(
            look_get_watch(buf_bytes(&out) + FRAME_HEADER_SIZE, buf_size(&out) - FRAME_HEADER_SIZE, &read));
        assert_int_equal(read.ms, 5000);
        assert_int_equal(read.stacks, stacks);
        buf_finish(&out);
    }
    assert_false(look_get_watch((const uint8_t *)"{\"view\":1}", 10, &read));
}

static void stacks_come_with_a_status(void **state)
{
    static const char piece[] =
        "{\"status\":{\"piece\":1,\"pieces\":2,\"node\":{\"workers\":[],"
        "\"stacks\":{\"version\":1,\"job\":\"train-7\",\"groups\":[\"ranks 0-3\"]}}}}";
    struct look_request request = {.job = "train-7", .stacks = true};
    struct session_json_message message;
    char error[SESSION_JSON_ERROR_SIZE];
    struct query_answer l = {0};
    struct buf out = {0};

    (void)state;
    assert_int_equal(look_put_request(&out, &request), 0);
    assert_true(session_json_get_message(buf_bytes(&out) + FRAME_HEADER_SIZE,
                                         buf_size(&out) - FRAME_HEADER_SIZE, &message, error));
    assert_true(message.look.stacks);
    buf_finish(&out);
    assert_int_equal(look_put_job(&out, &a_job), 0);
    put_node(&out, "node0", 0);
    put_status(&out, "node0", 0, 2, (struct look_piece){0, 2});
    assert_int_equal(frame_put_body(&out, piece, sizeof(piece) - 1), 0);
    put_node(&out, "node1", 1);
    assert_int_equal(look_put_end(&out, 0), 0);
    assert_int_equal(take(&l, &out), 0);
    assert_string_equal(l.stacks, "{\"version\":1,\"job\":\"train-7\",\"groups\":[\"ranks 0-3\"]}");
    assert_int_equal(l.jobs[0].nodes[0].n_workers, 2);
    assert_int_equal(l.n_unreported, 1);
    query_answer_finish(&l);
    assert_null(l.stacks);
}

/* The node that answers itself keeps what it knows. */
static void nodes_are_merged(void **state)
{
    struct job_status own = {0}, seen = {0};

    (void)state;
    assert_int_equal(job_status_add_node(&own, "node1", 1, 2), 0);
    assert_int_equal(job_status_add_node(&seen, "node0", 0, 3), 0);
    assert_int_equal(job_status_add_node(&seen, "node1", 1, 5), 0);
    assert_int_equal(job_status_take_nodes(&own, &seen), 0);
    assert_int_equal(own.n_nodes_known, 2);
    assert_int_equal(own.nodes[0].n_workers, 2);
    assert_string_equal(own.nodes[1].host, "node0");
    assert_int_equal(own.nodes[1].n_workers, 3);
    job_status_finish(&seen);
    job_status_finish(&own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_read),   cmocka_unit_test(a_crund_that_does_not_lead),
        cmocka_unit_test(refusals_and_faults), cmocka_unit_test(a_rendezvous_reads_looks_and_pieces),
        cmocka_unit_test(an_agent_is_asked),   cmocka_unit_test(stacks_come_with_a_status),
        cmocka_unit_test(nodes_are_merged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
