/*
 * A program on libcrw in which one rank stalls: stall_job KIND RANK STEP STEP_MS FOLDER [PHASE [MOVER MOVE]]. All ranks make all-reduces in the
 * world, with a pause of STEP_MS before each. At step STEP the rank RANK acts as KIND names and the others wait for it. The rank goes on when the file
 * FOLDER/go exists, but for "stop", "skip", "order" and "size". Each rank prints "STEP N" after step N = STEP - 1, and "DONE" at the end.
 *
 * PHASE: start, init, load, steps, save, leave or exit. The job has all these phases then, and the rank stalls in the given phase; "-": the steps alone. The rank writes
 * the time into FOLDER/stalled, each other rank into FOLDER/began.RANK at the same place (monotonic, in ns). In phase "steps" each
 * rank writes FOLDER/steps.RANK: time and processor time in ns of the STEPS_MEASURED steps before the stall, and of the steps after it.
 *
 * MOVER: a further thread of the rank prints a line (MOVE "prints") or writes 100 KB into a file ("writes") every half second;
 * "chats": a line every 2 ms; -1: no rank.
 */

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "worker-runtime/crw.h"

enum { STEPS_BEHIND = 250, STEPS_MEASURED = 100, WORLD_MAX = 4096, KEY_MS = 3600000 };

static const char *folder;
static struct crw_group *world; /* NULL before crw_init() */

static void pause_ms(long ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL); /* cut short by a signal is fine */
}

static void path_of(const char *name, char out[4096])
{
    (void)snprintf(out, 4096, "%s/%s", folder, name); /* fits */
}

static bool may_go(void)
{
    char path[4096];

    path_of("go", path);
    return access(path, F_OK) == 0;
}

static void sleeps(void)
{
    while (!may_go())
        pause_ms(400);
}

static void computes(void)
{
    volatile uint64_t n = 0;

    (void)!nice(10); /* leaves the processor to the other ranks; a refusal is fine */
    for (uint64_t i = 1; i % 100000000 != 0 || !may_go(); i++)
        n = n + i;
}

/* A megabyte a second. */
static void reads_slowly(void)
{
    static char block[50000];
    char path[4096];

    path_of("data", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && !may_go()) {
        if (read(fd, block, sizeof(block)) < (ssize_t)sizeof(block))
            (void)lseek(fd, 0, SEEK_SET); /* a file: cannot fail */
        pause_ms(50);
    }
}

static void writes_slowly(void)
{
    static char block[50000];
    char path[4096];

    path_of("saved", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (fd >= 0 && !may_go() && write(fd, block, sizeof(block)) > 0)
        pause_ms(50);
}

/* The test writes a byte into it. */
static void reads_fifo(void)
{
    char path[4096], byte;

    path_of("fifo", path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    (void)!read(fd, &byte, 1);
}

/* The test never reads it while it stalls. */
static void fills_pipe(void)
{
    static char block[1 << 20];
    int ends[2];

    if (pipe(ends) < 0)
        return;
    if (fork() == 0) {
        (void)close(ends[1]);
        sleeps();
        while (read(ends[0], block, sizeof(block)) > 0)
            ;
        _exit(0);
    }
    (void)close(ends[0]);
    /* A stack tool that pauses the process cuts a write short. */
    for (ssize_t n, at = 0; at<(ssize_t)sizeof(block); at += n> 0 ? n : 0)
        n = write(ends[1], block + at, sizeof(block) - (size_t)at);
    (void)close(ends[1]);
}

/* A parent of vfork() is in state D until its child ends. */
static void is_blocked(void)
{
    pid_t child = vfork();

    if (child == 0) {
        sleeps();
        _exit(0);
    }
    (void)waitpid(child, NULL, 0);
}

/* Waits for a process of its own, which never writes into the pipe. */
static void waits_for_child(void (*work)(void))
{
    int ends[2];
    char byte;

    if (pipe(ends) < 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        work();
        _exit(0);
    }
    (void)close(ends[1]);
    (void)!read(ends[0], &byte, 1);
    (void)waitpid(child, NULL, 0);
}

static void starves(void)
{
    waits_for_child(computes);
}

static void starves_idly(void)
{
    waits_for_child(sleeps);
}

/* The test has frozen the file system. */
static void writes_frozen(void)
{
    char path[4096];

    path_of("disk/file", path);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    (void)!write(fd, path, sizeof(path));
    (void)close(fd);
}

/* The file system of the test answers no read. */
static void imports(void)
{
    char path[4096];

    path_of("slow/module.so", path);
    (void)dlopen(path, RTLD_NOW); /* fails at the latest when the file system ends */
}

static void waits_for_key(void)
{
    void *value = NULL;
    size_t n;

    if (world && crw_store_get(world, "plan/of/batch", KEY_MS, &value, &n) == 0)
        free(value);
}

static void stops(void)
{
    (void)raise(SIGSTOP);
}

/* A slow file system is a FIFO in place of a module. */
static void opens_fifo(void)
{
    char path[4096];

    path_of("other_fifo", path);
    (void)close(open(path, O_RDONLY | O_CLOEXEC));
}

/* The port refuses: a client that tries again and again, with a look into a small file each time. */
static void connects(void)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    while (!may_go()) {
        FILE *hosts = fopen("/etc/hosts", "re");
        char text[49];
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (hosts) {
            (void)!fread(text, 1, sizeof(text), hosts);
            (void)fclose(hosts);
        }
        (void)connect(fd, (const struct sockaddr *)&address, sizeof(address)); /* refused */
        (void)close(fd);
        pause_ms(500);
    }
}

static const struct {
    const char *name;
    void (*act)(void);
} kinds[] = {
    {"sleep", sleeps},       {"compute", computes}, {"read", reads_slowly},  {"write", writes_slowly},
    {"fifo", reads_fifo},    {"pipe", fills_pipe},  {"blocked", is_blocked}, {"starve", starves},
    {"stop", stops},         {"open", opens_fifo},  {"connect", connects},   {"port", connects},
    {"disk", writes_frozen}, {"import", imports},   {"key", waits_for_key},  {"starve-idle", starves_idly},
};

static bool stall(const char *kind)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, kind) == 0) {
            kinds[i].act();
            return true;
        }
    return false;
}

/* ---- the job ---- */

struct job {
    const char *kind, *phase; /* phase NULL: the steps alone */
    int culprit, rank, step;
    long step_ms;
    struct crw_group *other; /* of all ranks, too */
};

static void note_time(const char *name)
{
    char path[4096];
    struct timespec t;

    path_of(name, path);
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
    FILE *f = fopen(path, "we");
    if (!f)
        return; /* the test misses the file */
    (void)fprintf(f, "%lld\n", (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    (void)fclose(f);
}

static void note_stall(const struct job *j)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "began.%d", j->rank); /* fits */
    note_time(j->rank == j->culprit ? "stalled" : name);
}

/* The stall of a phase other than the steps. */
static void reach(const struct job *j, const char *phase)
{
    if (!j->phase || strcmp(j->phase, phase) != 0)
        return;
    note_stall(j);
    if (j->rank == j->culprit && !stall(j->kind))
        exit(2);
}

/* The culprit sends a batch in fewer pieces than the others expect. */
static int pass_batch(const struct job *j)
{
    static char piece[1000];
    int r = 0;

    for (int i = 0; i < 2 && j->rank != j->culprit && !r; i++)
        r = crw_recv(world, piece, sizeof(piece), j->culprit);
    for (int to = 0; to < crw_world_size(world) && j->rank == j->culprit && !r; to++)
        r = to == j->rank ? 0 : crw_send(world, piece, sizeof(piece), to);
    return r;
}

static bool is_wrong_call(const char *kind)
{
    return strcmp(kind, "skip") == 0 || strcmp(kind, "order") == 0 || strcmp(kind, "size") == 0;
}

/* The culprit's calls. */
static int call_wrongly(const struct job *j)
{
    int64_t one = 1;

    if (strcmp(j->kind, "skip") == 0) /* an optional part of the step, of the culprit alone */
        return crw_barrier(j->other) != 0 ? 3 : 0;
    if (strcmp(j->kind, "size") == 0 ? pass_batch(j) != 0
                                     : crw_all_reduce(j->other, &one, 1, CRW_I64, CRW_MAX) != 0)
        return 3;
    return crw_all_reduce(world, &one, 1, CRW_I64, CRW_MAX) != 0 ? 3 : 0;
}

static int stall_in_step(const struct job *j)
{
    int64_t one = 1;

    if (is_wrong_call(j->kind) && j->other)
        return call_wrongly(j);
    if (strcmp(j->kind, "skip") == 0) {
        sleeps(); /* in place of the collective */
        return 0;
    }
    if (!stall(j->kind))
        return 2;
    return crw_all_reduce(world, &one, 1, CRW_I64, CRW_MAX) != 0 ? 3 : 0;
}

static int make_step(const struct job *j, int i)
{
    bool is_here = i == j->step && (!j->phase || strcmp(j->phase, "steps") == 0);
    int64_t one = 1;

    pause_ms(j->step_ms);
    if (is_here && j->phase)
        note_stall(j);
    if (is_here && j->rank == j->culprit)
        return stall_in_step(j);
    if (is_here && strcmp(j->kind, "size") == 0 && pass_batch(j) != 0)
        return 3;
    if (crw_all_reduce(world, &one, 1, CRW_I64, CRW_MAX) != 0)
        return 3;
    return j->other && i % 10 == 9 && crw_all_reduce(j->other, &one, 1, CRW_I64, CRW_MAX) != 0 ? 3 : 0;
}

/* ---- time of the steps before and after the stall ---- */

struct times {
    struct timespec wall, cpu;
};

static void take_times(struct times *t)
{
    (void)clock_gettime(CLOCK_MONOTONIC, &t->wall);         /* cannot fail */
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t->cpu); /* cannot fail */
}

static long long between(struct timespec a, struct timespec b)
{
    return (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec);
}

static void write_times(const struct job *j, const struct times t[4])
{
    char name[32], path[4096];

    (void)snprintf(name, sizeof(name), "steps.%d", j->rank); /* fits */
    path_of(name, path);
    FILE *f = fopen(path, "we");
    if (!f)
        return; /* the test misses the file */
    (void)fprintf(f, "%lld %lld %lld %lld\n", between(t[0].wall, t[1].wall), between(t[0].cpu, t[1].cpu),
                  between(t[2].wall, t[3].wall), between(t[2].cpu, t[3].cpu));
    (void)fclose(f);
}

static int run(const struct job *j)
{
    struct times times[4];
    int r = 0;

    for (int i = 0; !r && i < j->step + STEPS_BEHIND; i++) {
        if (i == j->step - STEPS_MEASURED)
            take_times(&times[0]);
        if (i == j->step) {
            take_times(&times[1]);
            (void)printf("STEP %d\n", i);
            (void)fflush(stdout);
        }
        if (i == j->step + 1)
            take_times(&times[2]);
        r = make_step(j, i);
        if (i == j->step + STEPS_MEASURED && j->phase && j->step >= STEPS_MEASURED) {
            take_times(&times[3]);
            write_times(j, times);
        }
    }
    return r;
}

/* ---- the other phases ---- */

static int make_other_group(struct job *j)
{
    static int members[WORLD_MAX];
    int n = crw_world_size(world);

    for (int i = 0; i < n && i < WORLD_MAX; i++)
        members[i] = i;
    return n <= WORLD_MAX ? crw_group_new(world, members, n, &j->other) : -1;
}

static int run_phases(struct job *j)
{
    reach(j, "init");
    if (make_other_group(j) != 0)
        return 3;
    reach(j, "load");
    if (crw_barrier(world) != 0)
        return 3;
    int r = run(j);
    reach(j, "save");
    if (r || crw_barrier(world) != 0)
        return r ? r : 3;
    reach(j, "leave");
    return 0;
}

static void *move(void *how)
{
    static char block[100000];
    char path[4096];

    path_of("moves", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    for (;;) {
        if (strcmp(how, "writes") != 0) {
            (void)printf("moves\n");
            (void)fflush(stdout);
        } else {
            (void)!pwrite(fd, block, sizeof(block), 0);
        }
        pause_ms(strcmp(how, "chats") == 0 ? 2 : 500);
    }
    return NULL;
}

static int begin_to_move(const struct job *j, char **argv, int argc)
{
    pthread_t thread;

    return argc < 9 || atoi(argv[7]) != j->rank ? 0 : pthread_create(&thread, NULL, move, argv[8]);
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");

    if ((argc != 6 && argc != 7 && argc != 9) || !rank)
        return 2;
    struct job j = {.kind = argv[1],
                    .culprit = atoi(argv[2]),
                    .step = atoi(argv[3]),
                    .step_ms = atol(argv[4]),
                    .phase = argc > 6 && strcmp(argv[6], "-") != 0 ? argv[6] : NULL,
                    .rank = atoi(rank)};
    folder = argv[5];
    if (begin_to_move(&j, argv, argc) != 0)
        return 2;
    reach(&j, "start");
    if (crw_init(NULL, 0, 0, &world) != 0)
        return 2;
    int r = j.phase ? run_phases(&j) : run(&j);
    (void)printf("DONE\n");
    crw_group_destroy(j.other);
    if (r == 0 && crw_finish(world) != 0)
        r = 4;
    reach(&j, "exit");
    return r;
}
