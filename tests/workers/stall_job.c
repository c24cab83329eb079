/*
 * A program on libcrw in which one rank stalls: stall_job KIND RANK STEP STEP_MS FOLDER. All ranks make all-reduces in the world, with a pause of
 * STEP_MS before each. At step STEP the rank RANK does what KIND names and the others wait for it. It goes on when the file
 * FOLDER/go exists, but for "stop" and "skip". Each rank prints "STEP N" after step N = STEP - 1, and "DONE" at the end.
 */

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "worker-runtime/crw.h"

enum { STEPS_BEHIND = 250 };

static const char *folder;

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

    for (uint64_t i = 1; i % 100000000 != 0 || !may_go(); i++)
        n += i;
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
    (void)!write(ends[1], block, sizeof(block));
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

/* Waits for a process of its own, which computes. */
static void starves(void)
{
    int ends[2];
    char byte;

    if (pipe(ends) < 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        computes();
        _exit(0);
    }
    (void)close(ends[1]);
    (void)!read(ends[0], &byte, 1);
    (void)waitpid(child, NULL, 0);
}

static void stops(void)
{
    (void)raise(SIGSTOP);
}

/* A file system that answers slowly is a FIFO that each module is read from. */
static void opens_fifo(void)
{
    char path[4096];

    path_of("other_fifo", path);
    (void)close(open(path, O_RDONLY | O_CLOEXEC));
}

static void connects(void)
{
    while (!may_go()) {
        FILE *hosts = fopen("/etc/hosts", "re");
        char text[49];

        if (hosts) {
            (void)!fread(text, 1, sizeof(text), hosts);
            (void)fclose(hosts);
        }
        pause_ms(500);
    }
}

static const struct {
    const char *name;
    void (*act)(void);
} kinds[] = {
    {"sleep", sleeps},    {"compute", computes}, {"read", reads_slowly},  {"write", writes_slowly},
    {"fifo", reads_fifo}, {"pipe", fills_pipe},  {"blocked", is_blocked}, {"starve", starves},
    {"stop", stops},      {"open", opens_fifo},  {"connect", connects},
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

static int run(struct crw_group *group, const char *kind, int rank, int step, long step_ms)
{
    int64_t one = 1;

    for (int i = 0; i < step + STEPS_BEHIND; i++) {
        bool stalls = i == step && crw_rank(group) == rank;

        if (i == step) {
            (void)printf("STEP %d\n", i);
            (void)fflush(stdout);
        }
        pause_ms(step_ms);
        if (stalls && strcmp(kind, "skip") != 0 && !stall(kind))
            return 2;
        if (stalls && strcmp(kind, "skip") == 0)
            sleeps(); /* in place of the collective */
        else if (crw_all_reduce(group, &one, 1, CRW_I64, CRW_MAX) != 0)
            return 3;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct crw_group *group;

    if (argc != 6 || crw_init(NULL, 0, 0, &group) != 0)
        return 2;
    folder = argv[5];
    int r = run(group, argv[1], atoi(argv[2]), atoi(argv[3]), atol(argv[4]));
    (void)printf("DONE\n");
    return r == 0 && crw_finish(group) == 0 ? 0 : r ? r : 4;
}
