/* Host lists, host files, and the lists of schedulers: each text as the hosts that come out, or as the sentence that refuses it. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/strbuf.h"
#include "launcher/front/hosts.h"

#include "tests/support/c/cmocka_fixed.h"

/* "user@name/slots name/0" */
static char *spell_hosts(struct host_list *list)
{
    struct strbuf out = {0};

    for (size_t i = 0; i < list->n; i++) {
        const struct host_entry *h = &list->hosts[i];
        strbuf_add(&out, "%s%s%s%s/%d", i ? " " : "", h->user ? h->user : "", h->user ? "@" : "", h->name,
                   h->slots);
    }
    host_list_finish(list);
    return strbuf_steal(&out);
}

struct row {
    const char *text, *expected; /* with "!" in front: part of the refusal */
};

static void expect_hosts(const struct row *row, struct host_list *list, int result, const char *error)
{
    if (row->expected[0] == '!') {
        assert_int_equal(result, -EINVAL);
        if (!strstr(error, row->expected + 1))
            fail_msg("%s: %s", row->text, error);
        assert_true(!list->hosts && list->n == 0);
        return;
    }
    if (result)
        fail_msg("%s: %s", row->text, error);
    char *found = spell_hosts(list);
    assert_string_equal(found, row->expected);
    free(found);
}

static void test_lists(void **state)
{
    static const struct row rows[] = {
        {"a", "a/0"},
        {"a,b,c", "a/0 b/0 c/0"},
        {" a , b ", "a/0 b/0"},
        {"a:4,b", "a/4 b/0"},
        {"a,b[1-3]:8,user@c", "a/0 b1/8 b2/8 b3/8 user@c/0"},
        {"u-1.x_+y@n[08-10].lan:2", "u-1.x_+y@n08.lan/2 u-1.x_+y@n09.lan/2 u-1.x_+y@n10.lan/2"},
        {"r[0-1]n[1,3]:1", "r0n1/1 r0n3/1 r1n1/1 r1n3/1"},
        {"a,a", "a/2"},
        {"a:2,b,a:3", "a/5 b/0"},
        {"a:2,b,a", "a/3 b/0"},
        {"b,a,b,a,b", "b/3 a/2"},
        {"u@a,a", "u@a/2"},
        {"a:2,b,u@a:2,u@a:2", "u@a/6 b/0"},
        {"u@a:2,v@a:2,u@a:2", "!a is named with two users, u and v"},
        {"[::1]", "::1/0"},
        {"[fd00::7]:8,u@[fd00::8]:2,n[1-2]", "fd00::7/8 u@fd00::8/2 n1/0 n2/0"},
        {"10.0.0.1:4,10.0.0.[2-3]", "10.0.0.1/4 10.0.0.2/0 10.0.0.3/0"},
        {"a:4096", "a/4096"},
        {"", "!no name of a host"},
        {"a,", "!no name of a host"},
        {",a", "!no name of a host"},
        {"a,,b", "!no name of a host"},
        {"a:", "!'' is no number of slots from 1 to 4096"},
        {"a:0", "!'0' is no number"},
        {"a:4097", "!'4097' is no number"},
        {"a:99999999999999999999", "!is no number"},
        {"a:-1", "!is no number"},
        {"a:2x", "!is no number"},
        {"a:4096,a", "!a has more than 4096 slots"},
        {"fd00::7", "!write [ADDRESS] or [ADDRESS]:SLOTS"},
        {"::1:8", "!may be an IPv6 address or a host with slots"},
        {"a:1:2", "!write [ADDRESS]"},
        {"[::1]8", "!'8' follows an address"},
        {"[::1", "!may be an IPv6 address"},
        {"[fd00::zz]", "!'[fd00::zz]' is no IPv6 address"},
        {"[fe80::1%eth0]", "!is no IPv6 address"},
        {"-oProxyCommand=x", "!no name of a host"},
        {"-oX", "!begins with a dash"},
        {"u@-oX", "!begins with a dash"},
        {"-l@a", "!'-l@' names no user"},
        {"@a", "!'@' names no user"},
        {"a b@c", "!'a b@' names no user"},
        {"u@v@c", "!no name of a host"},
        {"u@", "!no name of a host"},
        {"a b", "!no name of a host"},
        {"a;reboot", "!no name of a host"},
        {"$(x)", "!no name of a host"},
        {"a[1-", "!no name of a host"},
        {"a]", "!no name of a host"},
        {"a[3-1]", "!no name of a host"},
        {"a[1-99999]", "!no name of a host"},
        {"a[1-16385]", "!16385 hosts are named, and 16384 are the most"},
        {"a[1-65536],b[1-65536],c[1-65536],d[1-65536],e[1-65536],f[1-65536],g[1-65536],h[1-65536],i[1-65536],"
         "j[1-65536],k[1-65536],l[1-65536],m[1-65536],n[1-65536],o[1-65536],p[1-65536],q",
         "!more than 1048576 hosts are named"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char error[HOSTS_ERROR_SIZE] = "";
        struct host_list list;
        int r = host_list_read(&list, rows[i].text, NULL, NULL, NULL, error);
        expect_hosts(&rows[i], &list, r, error);
    }
}

static int read_from_row(void *data, const char *path, char **ret_text)
{
    if (strcmp(path, "/file") != 0)
        return -ENOENT;
    *ret_text = strdup(data);
    return 0;
}

static void test_files(void **state)
{
    static const struct row rows[] = {
        {"a\nb\n", "a/0 b/0"},
        {"a\nb", "a/0 b/0"},
        {"# all\n\n  \na slots=4 # first\n\tb\tslots=2 max-slots=8\r\nc max_slots=3", "a/4 b/2 c/3"},
        {"a slots = 4 max-slots =\t8\n", "a/4"},
        {"a max-slots=3\na\n", "a/4"},
        {"a max-slots=9 slots=2\n", "a/2"},
        {"a:4\nb:2\n", "a/4 b/2"},
        {"a\na\na\nb\n", "a/3 b/0"},
        {"a\nb\na\nb\n", "a/2 b/2"},
        {"a slots=2\nb slots=2\na slots=3\n", "a/5 b/2"},
        {"u@n[1-2] slots=8\n", "u@n1/8 u@n2/8"},
        {"[::1] slots=2\n[fd00::2]:3\n", "::1/2 fd00::2/3"},
        {"", "!no host is named"},
        {"# a\n", "!no host is named"},
        {"a max-slots=2 slots=4\n", "!line 1: max-slots=2 is less than slots=4"},
        {"a = 4\n", "!line 1: 'a=4' is no name of a host"},
        {"a slots = = 4\n", "!line 1: '=4' is no number"},
        {"a\nb slots=x\n", "!line 2: 'x' is no number of slots"},
        {"a slots=\n", "!line 1: '' is no number"},
        {"a slots\n", "!line 1: 'slots' behind a host"},
        {"a cores=2\n", "!line 1: 'cores=2' behind a host: slots=N and max-slots=N may stand there"},
        {"\n\na:2 slots=2\n", "!line 3: 'a:2' has slots twice"},
        {"a max-slots=0\n", "!line 1: '0' is no number"},
        {"a\nb,c\nfd00::2\n", "!line 3: 'fd00::2' may be an IPv6 address"},
        {"a\n-oX\n", "!line 2: '-oX' begins with a dash"},
        {"a slots=4096\na slots=1\n", "!a has more than 4096 slots"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        char error[HOSTS_ERROR_SIZE] = "";
        struct host_list list;
        const struct host_files files = {.read = read_from_row, .data = (void *)(uintptr_t)rows[i].text};
        int r = host_list_read(&list, NULL, "/file", NULL, &files, error);
        expect_hosts(&rows[i], &list, r, error);
    }
}

/* ---- schedulers ---- */

struct scheduler_row {
    const char *environment[4];
    const char *file, *expected;
    const char *hint; /* part of the hint; NULL: none */
};

static const struct scheduler_row scheduler_rows[] = {
    {{"PBS_NODEFILE=/file"}, "a\na\nb\nb\n", "a/2 b/2", "PBS gave this job 2 hosts"},
    {{"PBS_NODEFILE=/file"}, "a\nb\n", "a/0 b/0", "--hosts=auto"},
    {{"PBS_NODEFILE=/file", "OMPI_COMM_WORLD_SIZE=2"}, "a\nb\n", "a/0 b/0", NULL},
    {{"PBS_NODEFILE=/file"}, "a\na\n", "a/2", NULL},
    {{"PBS_NODEFILE=/file", "LSB_HOSTS=x"}, "a\n", "a/0", NULL},
    {{"LSB_DJOB_HOSTFILE=/file", "LSB_MCPU_HOSTS=x 3"}, "a\na\nb\n", "a/2 b/0", "LSF gave this job 2"},
    {{"LSB_MCPU_HOSTS=a 4 b 2 ", "LSB_HOSTS=x"}, "", "a/4 b/2", "LSF"},
    {{"LSB_HOSTS=a a b"}, "", "a/2 b/0", "LSF"},
    {{"PE_HOSTFILE=/file"}, "a 8 all.q@a UNDEFINED\nb 4 all.q@b <NULL>\n", "a/8 b/4", "SGE"},
    {{"SLURM_JOB_NODELIST=n[1-3]", "SLURM_TASKS_PER_NODE=8(x3)"},
     "",
     "n1/0 n2/0 n3/0",
     "Slurm gave this job 3"},
    {{"SLURM_JOB_NODELIST=n[1-3]", "SLURM_STEP_ID=0"}, "", "n1/0 n2/0 n3/0", NULL},
    {{"PBS_NODEFILE="}, "", "!no list of PBS, LSF, SGE or Slurm", NULL},
    {{NULL}, "", "!no list of PBS, LSF, SGE or Slurm", NULL},
    {{"PBS_NODEFILE=/none"}, "", "!PBS_NODEFILE=/none: No such file", NULL},
    {{"PBS_NODEFILE=/file"}, "a\nb:x\n", "!PBS_NODEFILE=/file: line 2: 'x' is no number", NULL},
    {{"LSB_MCPU_HOSTS=a 4 b"}, "", "!LSB_MCPU_HOSTS: '' is no number", NULL},
    {{"PE_HOSTFILE=/file"}, "a\n", "!PE_HOSTFILE=/file: line 1: '' is no number", NULL},
    {{"SLURM_JOB_NODELIST=n[1-"}, "", "!SLURM_JOB_NODELIST: 'n[1-' is no name", NULL},
};

static void expect_scheduler_row(const struct scheduler_row *row)
{
    char *const *environment = (char *const *)(uintptr_t)row->environment;
    const struct host_files files = {.read = read_from_row, .data = (void *)(uintptr_t)row->file};
    char error[HOSTS_ERROR_SIZE] = "";
    struct host_list list;

    int r = host_list_read(&list, "auto", NULL, environment, &files, error);
    const struct row plain = {row->environment[0] ? row->environment[0] : "none", row->expected};
    expect_hosts(&plain, &list, r && row->expected[0] == '!' ? -EINVAL : r, error);
    char *hint = host_list_hint(environment, &files);
    assert_true(row->hint ? hint && strstr(hint, row->hint) : !hint);
    free(hint);
}

static void test_schedulers(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(scheduler_rows); i++)
        expect_scheduler_row(&scheduler_rows[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_schedulers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
