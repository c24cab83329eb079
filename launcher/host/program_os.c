/*
 * Which program runs; the first row that fits counts:
 *   --no-python        the command, found on PATH
 *   -m                 Python, with a module's name that Python alone checks
 *   -, -c, ...         Python: no file, but what its own command line makes of it ("-- -m module")
 *   *.py               Python, whatever the file looks like
 *   "#!" with python   Python, as torchrun has it, executable or not: unbuffered, and of the environment the
 *                      user is in rather than that of /usr/bin; a line with options is obeyed as below
 *   ELF or other "#!"  the file itself, which must be executable
 *   anything else      Python (a folder or a zip with __main__.py, a script without a suffix)
 *
 * Python is $PYTHON_EXEC, else for a script that a "#!" line ties to the python in its own folder (what pip
 * installs) that one, else the one beside us when we were called as .../torchrun (a link in the environment's
 * folder, where torchrun would take its own), else the one beside the program crun when that is in the bin folder of an
 * environment (pip install crun-launch), else bin/python of the active virtual environment, else python3 or python on
 * PATH.
 */

#include "launcher/host/program_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/util/log_os.h"
#include "launcher/cli/job.h"
#include "launcher/cli/plan.h"
#include "base/cleanup.h"
#include "base/err.h"

__attribute__((format(printf, 2, 3))) static int program_refuse(char *error, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error, PROGRAM_ERROR_SIZE, format, args); /* a cut sentence is still the best we have */
    va_end(args);
    return 1;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The path execvp() would take: name itself with a slash in it, else the first executable file on PATH.
 * *ret_error: the reason when there is none. */
static char *find_on_path(const char *name, char *const *environment, int *ret_error)
{
    const char *path = envp_get(environment, "PATH");

    *ret_error = ENOENT;
    if (strchr(name, '/')) {
        *ret_error = access(name, X_OK) < 0 ? errno : is_folder(name) ? EISDIR : 0;
        return *ret_error ? NULL : strdup(name);
    }
    if (!*name)
        return NULL;
    for (const char *dir = path ? path : "/bin:/usr/bin";; dir++) {
        size_t n = strcspn(dir, ":");
        char *file = NULL;

        if (asprintf(&file, "%.*s/%s", n ? (int)n : 1, n ? dir : ".", name) < 0)
            return NULL;
        if (access(file, X_OK) == 0 && !is_folder(file))
            return file;
        if (errno == EACCES)
            *ret_error = EACCES;
        free(file);
        dir += n;
        if (!*dir)
            return NULL;
    }
}

/* ---- kinds ---- */

enum file_kind { FILE_PROGRAM, FILE_SCRIPT_OF_PYTHON, FILE_OTHER };

enum { LINE_SIZE = 256 }; /* what the kernel reads of a "#!" line */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* Cuts the next word off *rest; "" at the end. */
static const char *next_line_word(char **rest)
{
    char *word = *rest + strspn(*rest, " \t\r");
    size_t n = strcspn(word, " \t\r");

    *rest = word + n + (word[n] != '\0');
    word[n] = '\0';
    return word;
}

/* Whether a "#!" line, behind these two letters, asks for Python and nothing but Python: "/usr/bin/python3" or
 * "/usr/bin/env python3". The line is cut up; its first word stays at *ret_interpreter. */
static bool is_line_of_python(char *line, const char **ret_interpreter)
{
    const char *name = *ret_interpreter = next_line_word(&line);

    if (strcmp(base_name(name), "env") == 0)
        name = next_line_word(&line);
    return strncmp(base_name(name), "python", strlen("python")) == 0 && !*next_line_word(&line);
}

static bool is_regular_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* The kind of the file by its first bytes, which are left in head. An unreadable file can still be executed. A FIFO is for
 * Python: bytes that were read here would be missing there. */
static enum file_kind file_kind_of(const char *path, char head[LINE_SIZE], const char **ret_interpreter)
{
    *head = '\0';

    if (ends_with(path, ".py") || !is_regular_file(path))
        return FILE_OTHER;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno == EACCES && access(path, X_OK) == 0 ? FILE_PROGRAM : FILE_OTHER;
    ssize_t n = read(fd, head, LINE_SIZE - 1);
    head[n > 0 ? n : 0] = '\0';
    if (n >= 4 && memcmp(head, "\177ELF", 4) == 0)
        return FILE_PROGRAM;
    if (n < 2 || memcmp(head, "#!", 2) != 0)
        return FILE_OTHER;
    head[strcspn(head, "\n")] = '\0';
    return is_line_of_python(head + 2, ret_interpreter) ? FILE_SCRIPT_OF_PYTHON : FILE_PROGRAM;
}

/* ---- commands ---- */

/* The interpreter in the folder of the link ".../torchrun" that we were called by; malloc'ed or NULL. */
static char *python_beside_torchrun(void)
{
    const char *called = program_invocation_name;
    char *file = NULL;

    if (strcmp(base_name(called), "torchrun") != 0 || !strchr(called, '/'))
        return NULL;
    if (asprintf(&file, "%.*spython3", (int)(base_name(called) - called), called) < 0)
        return NULL;
    if (access(file, X_OK) == 0)
        return file;
    free(file);
    return NULL;
}

/* Whether folder, which ends in "/", is the bin folder of an environment of venv or conda. */
static bool is_in_environment(const char *folder)
{
    static const char *const marks[] = {"../pyvenv.cfg", "../conda-meta"};
    char mark[PATH_MAX + 16];

    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        (void)snprintf(mark, sizeof(mark), "%s%s", folder, marks[i]); /* a cut path exists nowhere */
        if (access(mark, F_OK) == 0)
            return true;
    }
    return false;
}

/* The interpreter of the environment that crun is installed in; malloc'ed or NULL. */
static char *python_beside_crun(void)
{
    char folder[PATH_MAX];
    char *file = NULL;

    ssize_t n = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    folder[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (!slash)
        return NULL;
    slash[1] = '\0';
    if (!is_in_environment(folder) || asprintf(&file, "%spython3", folder) < 0)
        return NULL;
    if (access(file, X_OK) == 0)
        return file;
    free(file);
    return NULL;
}

/* home: an interpreter to be preferred to all but PYTHON_EXEC, or NULL. */
static int find_python(char *const *environment, const char *home, struct plan_command *command,
                       char **ret_file, char *error)
{
    const char *chosen = envp_get(environment, "PYTHON_EXEC");
    const char *venv = envp_get(environment, "VIRTUAL_ENV");
    char *in_venv = NULL;
    int why = 0;

    if (chosen) {
        *ret_file = find_on_path(chosen, environment, &why);
        if (!*ret_file)
            return program_refuse(error, "cannot run Python: PYTHON_EXEC=%s: %s", chosen, strerror(why));
        strlist_add_copy(&command->head, chosen);
        return 0;
    }
    *ret_file = home ? strdup(home) : python_beside_torchrun();
    if (!*ret_file)
        *ret_file = python_beside_crun();
    if (*ret_file) {
        strlist_add_copy(&command->head, *ret_file);
        return 0;
    }
    if (venv && *venv && asprintf(&in_venv, "%s/bin/python", venv) >= 0 && access(in_venv, X_OK) == 0) {
        *ret_file = in_venv;
    } else {
        free(in_venv);
        *ret_file = find_on_path("python3", environment, &why);
        if (!*ret_file)
            *ret_file = find_on_path("python", environment, &why);
        if (*ret_file && venv && *venv)
            log_line("VIRTUAL_ENV=%s has no executable bin/python; %s is used instead", venv, *ret_file);
    }
    if (!*ret_file)
        return program_refuse(error,
                              "no Python found (PYTHON_EXEC, VIRTUAL_ENV, python3 and python on PATH); set "
                              "PYTHON_EXEC, or use --no-python for a program that is not a Python script");
    strlist_add_copy(&command->head, *ret_file);
    return 0;
}

/* What PYTHON -c executes for --run-path: the script as __main__, errors recorded as by @record. */
static const char run_path_code[] =
    "import runpy, sys; "
    "from torch.distributed.elastic.multiprocessing.errors import record; "
    "sys.argv = sys.argv[1:]; "
    "record(runpy.run_path)(sys.argv[0], run_name='__main__')";

static int use_python(const struct job *job, char *const *environment, const char *home,
                      struct plan_command *command, char **ret_file, char *error)
{
    int r = find_python(environment, home, command, ret_file, error);

    if (r)
        return r;
    strlist_add_copy(&command->head, "-u");
    if (job->program == JOB_PROGRAM_MODULE)
        strlist_add_copy(&command->head, "-m");
    if (job->program == JOB_PROGRAM_RUN_PATH) {
        strlist_add_copy(&command->head, "-c");
        strlist_add_copy(&command->head, run_path_code);
    }
    command->script = job->program_name;
    return 0;
}

static int use_executable(const struct job *job, char *const *environment, struct plan_command *command,
                          char **ret_file, char *error)
{
    int why;

    *ret_file = find_on_path(job->program_name, environment, &why);
    if (!*ret_file && why == EACCES)
        return program_refuse(error, "%s: it is not executable: Permission denied; chmod +x it",
                              job->program_name);
    if (!*ret_file)
        return program_refuse(error, "%s: %s%s", job->program_name, strerror(why),
                              strchr(job->program_name, '/') ? "" : " on PATH");
    strlist_add_copy(&command->head, job->program_name);
    return 0;
}

/* The script of one worker must be there; the name may contain ${local_rank}. */
static int check_script(const struct job *job, int local_rank, char *error)
{
    _cleanup_free_ char *path = plan_substitute(job->program_name, local_rank);

    if (!path)
        return program_refuse(error, "out of memory");
    if (access(path, F_OK) == 0)
        return 0;
    return program_refuse(error, "%s: %s%s", path, strerror(errno),
                          strchr(path, '/') ? ""
                                            : "; for a command on PATH use --no-python, for a module -m");
}

/* pip ties the scripts it installs to the interpreter beside them. */
static bool are_in_one_folder(const char *a, const char *b)
{
    size_t n_a = (size_t)(base_name(a) - a), n_b = (size_t)(base_name(b) - b);

    return n_a > 0 && n_a == n_b && strncmp(a, b, n_a) == 0;
}

static int use_file(const struct job *job, char *const *environment, struct plan_command *command,
                    char **ret_file, char *error)
{
    bool varies = strchr(job->program_name, '$') != NULL;

    if (*job->program_name == '-')
        return use_python(job, environment, NULL, command, ret_file, error);
    for (int i = 0; i < (varies ? job->n_workers : 1); i++) {
        int r = check_script(job, i, error);
        if (r)
            return r;
    }
    char head[LINE_SIZE];
    const char *interpreter = "";
    enum file_kind kind = varies ? FILE_OTHER : file_kind_of(job->program_name, head, &interpreter);
    if (kind != FILE_PROGRAM) {
        bool at_home = kind == FILE_SCRIPT_OF_PYTHON && are_in_one_folder(interpreter, job->program_name) &&
                       access(interpreter, X_OK) == 0;
        return use_python(job, environment, at_home ? interpreter : NULL, command, ret_file, error);
    }
    if (access(job->program_name, X_OK) < 0)
        return program_refuse(error, "%s: it is not executable: Permission denied; chmod +x it",
                              job->program_name);
    strlist_add_copy(&command->head, job->program_name);
    *ret_file = strdup(job->program_name);
    return *ret_file ? 0 : program_refuse(error, "out of memory");
}

int program_find(const struct job *job, char *const *environment, struct plan_command *ret_command,
                 char **ret_file, char error[PROGRAM_ERROR_SIZE])
{
    struct plan_command command = {.args = job->program_args};
    char *file = NULL;
    int r;

    if (job->program == JOB_PROGRAM_EXECUTABLE)
        r = use_executable(job, environment, &command, &file, error);
    else if (job->program == JOB_PROGRAM_FILE)
        r = use_file(job, environment, &command, &file, error);
    else
        r = use_python(job, environment, NULL, &command, &file, error);
    if (!r && command.head.failed)
        r = program_refuse(error, "out of memory");
    if (r) {
        strlist_finish(&command.head);
        free(file);
        return r;
    }
    *ret_command = command;
    *ret_file = file;
    return 0;
}
