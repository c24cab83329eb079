/* An ssh without a network, for a front with a thousand hosts: fake_ssh [OPTION...] [USER@]HOST COMMAND...
 *
 * The command runs here, in a child, under /bin/sh -c like a login shell's, with FAKE_SSH_HOMES/HOST as home and only the
 * variables of a login. The fake waits for the child and ends with the child's exit code. The child ends with
 * the fake. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILURE = 255, PATH_SIZE = 4096 };

/* Options of ssh with a value behind them. */
static const char with_value[] = "BbcDEeFIiJLlmOopQRSWw";

/* Index of the host among the arguments. */
static int host_index(int argc, char **argv)
{
    int i = 1;
    while (i < argc && argv[i][0] == '-') {
        if (strchr(with_value, argv[i][1]) != NULL && argv[i][2] == 0)
            i++;
        i++;
    }
    return i;
}

/* The words with blanks between them, as ssh sends a command. */
static char *join_words(int n, char **words)
{
    size_t size = 1;
    for (int i = 0; i < n; i++)
        size += strlen(words[i]) + 1;
    char *text = malloc(size);
    if (text == NULL)
        exit(FAILURE);
    char *end = text;
    for (int i = 0; i < n; i++)
        end += sprintf(end, "%s%s", i > 0 ? " " : "", words[i]);
    return text;
}

static void run_login(const char *host, char *command, pid_t parent)
{
    char home[PATH_SIZE], home_variable[PATH_SIZE + sizeof "HOME="];
    const char *homes = getenv("FAKE_SSH_HOMES");
    snprintf(home, sizeof home, "%s/%s", homes != NULL ? homes : "/tmp", host);
    snprintf(home_variable, sizeof home_variable, "HOME=%s", home);
    char path[PATH_SIZE];
    const char *given = getenv("FAKE_SSH_PATH");
    snprintf(path, sizeof path, "PATH=%s", given != NULL ? given : "/usr/local/bin:/usr/bin:/bin");
    static char user[] = "USER=root", shell[] = "SHELL=/bin/sh";
    char *environment[] = {home_variable, path, user, shell, NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || (mkdir(home, 0700) != 0 && errno != EEXIST) || chdir(home) != 0)
        _exit(FAILURE);
    execle("/bin/sh", "sh", "-c", command, (char *)NULL, environment);
    _exit(FAILURE);
}

int main(int argc, char **argv)
{
    int at = host_index(argc, argv);
    if (at + 1 >= argc) {
        fprintf(stderr, "usage: fake_ssh [OPTION...] [USER@]HOST COMMAND...\n");
        return FAILURE;
    }
    const char *user_end = strrchr(argv[at], '@');
    char *command = join_words(argc - at - 1, argv + at + 1);
    pid_t self = getpid(), child = fork();
    if (child == 0)
        run_login(user_end != NULL ? user_end + 1 : argv[at], command, self);
    free(command);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return FAILURE;
    return WIFEXITED(status) ? WEXITSTATUS(status) : FAILURE;
}
