/* What crunctl is sent and shows: JSON both ways, and text for a terminal. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/ctl/job_stacks_json.h"
#include "launcher/ctl/job_status.h"
#include "launcher/ctl/job_status_json.h"
#include "launcher/crunctl/status_text.h"
#include "launcher/util/control_path.h"
#include "base/err.h"

#include "tests/support/c/cmocka_fixed.h"

static struct job_status a_job(size_t n_workers)
{
    struct job_status s = {.job = "train-7",
                           .program = "train.py",
                           .state = "running",
                           .containment = "cgroup",
                           .crun_pid = 4711,
                           .generation = 2,
                           .restarts = 1,
                           .max_restarts = 3,
                           .n_nodes = 2,
                           .started_s = 1000};

    assert_int_equal(job_status_add_node(&s, "node1", 0, n_workers), 0);
    for (size_t i = 0; i < n_workers; i++) {
        struct worker_status *w = &s.nodes[0].workers[i];

        w->rank = (int32_t)i;
        w->pid = 5000 + (int64_t)i;
        w->started_s = 1100;
        (void)strcpy(w->state, "running");
    }
    return s;
}

static void a_job_is_found_by_how_its_name_begins(void **state)
{
    (void)state;
    assert_int_equal(job_status_match("train-7", NULL), JOB_MATCH_WHOLE);
    assert_int_equal(job_status_match("train-7", "train-7"), JOB_MATCH_WHOLE);
    assert_int_equal(job_status_match("train-7", "train"), JOB_MATCH_BEGINNING);
    assert_int_equal(job_status_match("train-7", ""), JOB_MATCH_BEGINNING);
    assert_int_equal(job_status_match("train-7", "train-71"), JOB_MATCH_NONE);
    assert_int_equal(job_status_match("train-7", "rain"), JOB_MATCH_NONE);
}

static void a_status_is_read_as_it_was_written(void **state)
{
    struct job_status s = a_job(2), read;
    struct worker_status *w = s.nodes[0].workers;

    (void)state;
    (void)strcpy(w[1].state, "failed");
    w[1].exit_code = -9;
    w[0].last_step = 4096;
    w[0].hang = true;
    char *json = job_status_to_json(&s);
    assert_non_null(json);
    assert_non_null(strstr(json, "{\"version\":1,\"job\":\"train-7\","));
    assert_non_null(strstr(json, "\"last_step\":null"));
    assert_non_null(strstr(json, "\"straggler\":false"));
    assert_int_equal(job_status_from_json(json, strlen(json), &read), 0);
    assert_string_equal(read.job, s.job);
    assert_string_equal(read.state, "running");
    assert_int_equal(read.generation, 2);
    assert_int_equal(read.n_nodes_known, 1);
    assert_string_equal(read.nodes[0].host, "node1");
    assert_int_equal(read.nodes[0].n_workers, 2);
    assert_int_equal(read.nodes[0].workers[0].last_step, 4096);
    assert_true(read.nodes[0].workers[0].hang);
    assert_int_equal(read.nodes[0].workers[1].last_step, -1);
    assert_int_equal(read.nodes[0].workers[1].exit_code, -9);
    job_status_finish(&read);
    job_status_finish(&s);
    free(json);
}

/* Bytes that are no UTF-8, in a job's name, still make JSON. */
static void any_name_makes_json(void **state)
{
    struct job_status s = a_job(1), read;

    (void)state;
    (void)strcpy(s.job, "a\xff\"b\n");
    char *json = job_status_to_json(&s);
    assert_non_null(json);
    assert_int_equal(job_status_from_json(json, strlen(json), &read), 0);
    assert_string_equal(read.job, "a?\"b\n");
    job_status_finish(&read);
    job_status_finish(&s);
    free(json);
}

static void other_texts_are_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "{}",
        "[1]",
        "{\"version\":2,\"job\":\"j\",\"nodes\":[]}",
        "{\"version\":1,\"job\":\"j\",\"nodes\":[]}",
        "{\"version\":1,\"error\":\"crun does not know this request\"}",
        "{\"version\":1,\"job\":7,\"state\":\"running\",\"crun_pid\":1,\"generation\":0,\"restarts\":0,\"max_restarts\":0,"
        "\"n_nodes\":1,\"started\":1,\"nodes\":[]}",
        "{\"version\":1,\"job\":\"j\",\"state\":\"running\",\"crun_pid\":1,\"generation\":0,\"restarts\":0,"
        "\"max_restarts\":0,\"n_nodes\":1,\"started\":1,\"nodes\":[{\"host\":\"h\",\"group_rank\":0,\"workers\":[{}]}]}",
    };
    struct job_status read;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        assert_int_equal(job_status_from_json(texts[i], strlen(texts[i]), &read), -EBADMSG);
        job_status_finish(&read);
    }
}

static void text_of_a_job(void **state)
{
    struct job_status s = a_job(2);
    struct worker_status *w = s.nodes[0].workers;

    (void)state;
    w[0].has_usage = true;
    w[0].rss_kib = 1536 << 10;
    w[0].cpu_percent = 97;
    w[0].last_step = 77;
    w[0].hang = true;
    (void)strcpy(w[1].state, "failed");
    w[1].exit_code = -9;
    char *text = status_text(&s, 1, 0, 1000 + 3 * 3600 + 61);
    assert_string_equal(
        text,
        "train-7: train.py, running for 3:01:01, generation 2, 1/3 restarts, 2 nodes, crun 4711, contained by its cgroup\n"
        "    RANK  HOST              PID  STATE                     CPU    MEMORY           UP       STEP\n"
        "       0  node1            5000  running                   97%   1.5 GiB      2:59:21         77  HANG\n"
        "       1  node1            5001  failed (SIGKILL)            -         -            -          -\n");
    free(text);
    text = status_text(NULL, 0, 0, 0);
    assert_string_equal(text, "no job of yours runs on this node\n");
    free(text);
    job_status_finish(&s);
}

/* No text of another origin begins a line or reaches the terminal as a command; a rank that is not known is "-". */
static void lines_stay_whole(void **state)
{
    struct job_status s = a_job(1);
    int n_lines = 0;

    (void)state;
    (void)strcpy(s.job, "a\nb\033[2J");
    (void)strcpy(s.program, "c\rd\xc2\x9b");
    (void)strcpy(s.nodes[0].host, "e\nf\a");
    s.nodes[0].workers[0].rank = -1;
    char *text = status_text(&s, 1, 60, 0);
    assert_non_null(text);
    for (const char *c = text; *c; c++) {
        n_lines += *c == '\n';
        assert_true(*c == '\n' || (unsigned char)*c >= ' ');
        assert_true((unsigned char)*c != 0x9b);
    }
    assert_int_equal(n_lines, 3);
    assert_non_null(strstr(text, "a b?[2J: c d?, running"));
    assert_non_null(strstr(text, "\n       -  e f?  "));
    free(text);
    job_status_finish(&s);
}

static void stacks_are_printable(void **state)
{
    static const char reply[] =
        "{\"version\":1,\"job\":\"a\\u001bb\",\"folder\":\"/f\\n\",\"groups\":[\"rank 0 in x\\u009b at y\"]}";

    (void)state;
    char *text = job_stacks_text(reply, strlen(reply));
    assert_string_equal(text, "job a?b, stacks: /f \n  rank 0 in x? at y\n");
    free(text);
    assert_null(job_stacks_text("{}", 2));
}

/* What crunctl and other nodes add is read back too. */
static void everything_of_a_worker_is_read(void **state)
{
    struct job_status s = a_job(1), read;
    struct worker_status *w = s.nodes[0].workers, *got;

    (void)state;
    w->straggler = true;
    w->has_usage = true;
    w->cpu_ms = 1234;
    w->rss_kib = 77;
    w->cpu_percent = 50;
    w->steps_per_s = 2.5;
    (void)strcpy(w->log, "/logs/0/stdout.log");
    (void)strcpy(w->last_line, "epoch 3: loss 0.1 \xff");
    s.nodes[0].n_gpus = 1;
    s.nodes[0].gpus[0] =
        (struct gpu_status){.index = 3, .percent = 97, .used_mib = 70000, .total_mib = 81920};
    char *json = job_status_to_json(&s);
    assert_non_null(json);
    assert_int_equal(job_status_from_json(json, strlen(json), &read), 0);
    got = read.nodes[0].workers;
    assert_true(got->straggler && got->has_usage);
    assert_int_equal(got->cpu_ms, 1234);
    assert_int_equal(got->cpu_percent, 50);
    assert_true(got->steps_per_s == 2.5);
    assert_string_equal(got->log, "/logs/0/stdout.log");
    assert_string_equal(got->last_line, "epoch 3: loss 0.1 ?");
    assert_int_equal(read.nodes[0].n_gpus, 1);
    assert_int_equal(read.nodes[0].gpus[0].used_mib, 70000);
    job_status_finish(&read);
    job_status_finish(&s);
    free(json);
}

/* Only of the same process: its number, place and host. */
static void rates_come_from_two_looks(void **state)
{
    struct job_status before = a_job(3), s = a_job(3);

    (void)state;
    for (int i = 0; i < 3; i++) {
        before.nodes[0].workers[i].has_usage = s.nodes[0].workers[i].has_usage = true;
        before.nodes[0].workers[i].cpu_ms = 1000;
        s.nodes[0].workers[i].cpu_ms = 1250;
        before.nodes[0].workers[i].last_step = 10;
        s.nodes[0].workers[i].last_step = 15;
    }
    s.nodes[0].workers[1].pid = 99;
    s.nodes[0].workers[2].last_step = -1;
    before.nodes[0].is_remote = s.nodes[0].is_remote = true;
    before.nodes[0].taken_ms = s.nodes[0].taken_ms = 7000;
    before.nodes[0].workers[0].cpu_percent = 33;
    job_status_compare(&s, &before, 200); /* the same report in both looks */
    assert_int_equal(s.nodes[0].workers[0].cpu_percent, 33);
    s.nodes[0].taken_ms = 7500;
    job_status_compare(&s, &before, 200);
    assert_int_equal(s.nodes[0].workers[0].cpu_percent, 50);
    assert_true(s.nodes[0].workers[0].steps_per_s == 10.0);
    assert_int_equal(s.nodes[0].workers[1].cpu_percent, -1);
    assert_true(s.nodes[0].workers[1].steps_per_s < 0);
    assert_int_equal(s.nodes[0].workers[2].cpu_percent, 50);
    assert_true(s.nodes[0].workers[2].steps_per_s < 0);
    job_status_finish(&before);
    job_status_finish(&s);
}

static void paths_follow_the_environment(void **state)
{
    static char run_user[] = "XDG_RUNTIME_DIR=/run/user/7", home[] = "HOME=/home/u",
                state_dir[] = "XDG_STATE_HOME=/s", config[] = "XDG_CONFIG_HOME=/c",
                no_config[] = "XDG_CONFIG_HOME=", relative[] = "XDG_RUNTIME_DIR=relative",
                long_dir[] = "XDG_RUNTIME_DIR=/12345678901234567890123456789012345678901234567",
                too_long_dir[] = "XDG_RUNTIME_DIR=/123456789012345678901234567890123456789012345678";
    char *longest[] = {long_dir, NULL}, *too_long[] = {too_long_dir, NULL}, *none[] = {NULL},
         *runtime[] = {run_user, home, NULL}, *state_home[] = {state_dir, home, relative, NULL},
         *config_home[] = {config, home, NULL}, *plain_home[] = {no_config, home, NULL};
    char path[CONTROL_PATH_SIZE], name[CONTROL_NAME_SIZE];

    (void)state;
    control_folder(runtime, 7, path);
    assert_string_equal(path, "/run/user/7/crun");
    control_folder(state_home, 0, path);
    assert_string_equal(path, "/run/crun");
    control_folder(none, 1000, path);
    assert_string_equal(path, "/tmp/crun-1000");
    control_folder(longest, 1000, path);
    assert_string_equal(path, "/12345678901234567890123456789012345678901234567/crun");
    control_folder(too_long, 1000, path); /* the address of a socket would be */
    assert_string_equal(path, "/tmp/crun-1000");
    control_front_name(longest, 1000, 4194304, path);
    assert_string_equal(path, "/12345678901234567890123456789012345678901234567/crun/front.4194304");
    control_front_name(runtime, 7, 0, path);
    assert_string_equal(path, "/run/user/7/crun/front.");
    assert_true(control_history_path(runtime, path));
    assert_string_equal(path, "/home/u/.local/state/crun/history.jsonl");
    assert_true(control_history_path(state_home, path));
    assert_string_equal(path, "/s/crun/history.jsonl");
    assert_false(control_history_path(none, path));
    assert_int_equal(control_secret_path(config_home, path), 0);
    assert_string_equal(path, "/c/crun/secret");
    assert_int_equal(control_secret_path(plain_home, path), 0);
    assert_string_equal(path, "/home/u/.config/crun/secret");
    assert_int_equal(control_secret_path(none, path), -ENOENT);
    control_socket_name("../a b/\xff", 0, name);
    assert_string_equal(name, "_._a_b__.sock");
    control_socket_name("0123456789012345678901234567890123456789xyz", 12, name);
    assert_string_equal(name, "0123456789012345678901234567890123456789.12.sock");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_found_by_how_its_name_begins),
        cmocka_unit_test(a_status_is_read_as_it_was_written),
        cmocka_unit_test(any_name_makes_json),
        cmocka_unit_test(other_texts_are_refused),
        cmocka_unit_test(text_of_a_job),
        cmocka_unit_test(lines_stay_whole),
        cmocka_unit_test(stacks_are_printable),
        cmocka_unit_test(everything_of_a_worker_is_read),
        cmocka_unit_test(rates_come_from_two_looks),
        cmocka_unit_test(paths_follow_the_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
