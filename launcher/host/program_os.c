/*
 * Which program runs; the first row that fits counts:
 *   --no-python        the command, found on PATH
 *   -m                 Python, with a module's name that Python alone checks
 *   -, -c, ...         Python: no file, but what its own command line makes of it ("-- -m module")
 *   *.py               Python, whatever the file looks like
 *   "#!" with python   Python, as torchrun has it, executable or not: unbuffered, without the options of the line, and of the
 *                      environment the user is in rather than that of /usr/bin
 *   "#!/bin/sh" with 'exec' of python in line 2 (pip and uv, for long paths and ones with blanks), or with a zip behind it
 *                      (pex): Python, too
 *   ELF or other "#!"  the file itself, which must be executable
 *   anything else      Python (a folder or a zip with __main__.py, a script without a suffix)
 *
 * Python is $PYTHON_EXEC, else for a script that its first lines tie to the python in its own folder (what pip installs) that one,
 * else the one beside us when we were called as .../torchrun (a link in the environment's folder, where torchrun would take its
 * own), else the one that the shell takes (python3 or python on PATH). The one beside the program crun comes before that when
 * crun is installed in an environment (pip install crun-launch), unless the shell's belongs to an active environment: crun may
 * be a tool with an environment of its own. Where it lies in no folder of PATH, crun was called by its path, and stays with the Python beside it.
 */

#include "launcher/host/program_os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/util/envp.h"
#include "launcher/util/log_os.h"
#include "launcher/cli/job.h"
#include "launcher/cli/options.h"
#include "launcher/cli/plan.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/format.h"
#include "base/strbuf.h"

__attribute__((format(printf, 2, 3))) static int program_refuse(char *error, const char *format, ...)
{
    (void)format_arguments(error, PROGRAM_ERROR_SIZE, format); /* a cut sentence is still the best we have */
    return 1;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

char *program_on_path(const char *name, char *const *environment, int *ret_error)
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
        char *file = strbuf_format("%.*s/%s", n ? (int)n : 1, n ? dir : ".", name);

        if (!file)
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

enum { HEAD_SIZE = PATH_MAX + 64, ZIP_END_SIZE = 22 };

struct file_head {
    char text[HEAD_SIZE];
    const char *interpreter; /* in text; "": none that is a path of Python */
    bool
        is_beside_script; /* the interpreter is the python in the folder of the script, wherever that is moved */
};

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

static bool is_python(const char *path)
{
    return strncmp(base_name(path), "python", strlen("python")) == 0;
}

/* Whether a "#!" line, behind these two letters, asks for Python: "/usr/bin/python3 -sE", "/usr/bin/env -S python3 -u". The line
 * is cut up; the word of Python stays at *ret_interpreter, and any other interpreter's when the result is false. */
static bool is_line_of_python(char *line, const char **ret_interpreter)
{
    const char *word = next_line_word(&line);

    if (strcmp(base_name(word), "env") == 0)
        do {
            word = next_line_word(&line);
            word += strncmp(word, "-S", 2) == 0 ? 2 : 0;
        } while (*word == '-' || strchr(word, '=') || (!*word && *line));
    *ret_interpreter = word;
    return is_python(word);
}

/* Whether a line is: '\''exec' "/a b/python3" "$0" "$@". One with $(dirname ...) names the folder of the script. */
static bool is_exec_of_python(char *line, struct file_head *head)
{
    char *word = line + strspn(line, "'\"");

    if (word == line || strncmp(word, "exec", 4) != 0 || !strchr("'\"", word[4]) || !word[4])
        return false;
    word += 5 + strspn(word + 5, " ");
    if (strncmp(word, "\"$(", 3) == 0 || strncmp(word, "\"`", 2) == 0)
        return head->is_beside_script = strstr(word, "python") != NULL;
    const char end[] = {*word == '\'' || *word == '"' ? *word : ' ', '\0'};
    word += *end != ' ';
    word[strcspn(word, end)] = '\0';
    head->interpreter = word;
    return is_python(word);
}

static bool is_regular_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* The file ends as a zip without a comment does: Python runs the __main__.py in it, whatever stands in front. */
static bool is_zip(int fd)
{
    char end[ZIP_END_SIZE];
    off_t size = lseek(fd, 0, SEEK_END);

    return pread(fd, end, sizeof(end), size - ZIP_END_SIZE) == ZIP_END_SIZE && memcmp(end, "PK\5\6", 4) == 0;
}

/* head begins with "#!". */
static enum file_kind kind_of_script(int fd, struct file_head *head)
{
    char *second = head->text + strcspn(head->text, "\n");

    if (*second)
        *second++ = '\0';
    second[strcspn(second, "\n")] = '\0';
    if (is_line_of_python(head->text + 2, &head->interpreter))
        return FILE_SCRIPT_OF_PYTHON;
    if (!ends_with(head->interpreter, "sh"))
        return FILE_PROGRAM;
    return is_exec_of_python(second, head) ? FILE_SCRIPT_OF_PYTHON : is_zip(fd) ? FILE_OTHER : FILE_PROGRAM;
}

/* The kind of the file by its first bytes, which are left in head. An unreadable file can still be executed. A FIFO is for
 * Python: bytes that were read here would be missing there. */
static enum file_kind file_kind_of(const char *path, struct file_head *head)
{
    if (ends_with(path, ".py") || !is_regular_file(path))
        return FILE_OTHER;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno == EACCES && access(path, X_OK) == 0 ? FILE_PROGRAM : FILE_OTHER;
    ssize_t n = read(fd, head->text, HEAD_SIZE - 1);
    head->text[n > 0 ? n : 0] = '\0';
    if (n >= 4 && memcmp(head->text, "\177ELF", 4) == 0)
        return FILE_PROGRAM;
    return n < 2 || memcmp(head->text, "#!", 2) != 0 ? FILE_OTHER : kind_of_script(fd, head);
}

/* ---- commands ---- */

/* Malloc'ed or NULL. */
static char *python_in_folder_of(const char *file)
{
    int n_folder = (int)(base_name(file) - file);
    _cleanup_free_ char *python = n_folder > 0 ? strbuf_format("%.*spython3", n_folder, file) : NULL;

    return python && access(python, X_OK) == 0 ? steal_ptr(python) : NULL;
}

/* The interpreter in the folder of the link ".../torchrun" that we were called by; malloc'ed or NULL. */
static char *python_beside_torchrun(void)
{
    const char *called = program_invocation_name;

    return strcmp(base_name(called), "torchrun") == 0 ? python_in_folder_of(called) : NULL;
}

/* Whether the file is in the bin folder of an environment of venv or conda. */
static bool is_in_environment(const char *file)
{
    static const char *const marks[] = {"../pyvenv.cfg", "../conda-meta"};
    char mark[PATH_MAX + 16];

    for (size_t i = 0; i < ARRAY_SIZE(marks); i++) {
        (void)snprintf(mark, sizeof(mark), "%.*s%s", (int)(base_name(file) - file), file,
                       marks[i]); /* a cut path exists nowhere */
        if (access(mark, F_OK) == 0)
            return true;
    }
    return false;
}

static bool stat_folder_of(const char *file, struct stat *ret)
{
    char folder[PATH_MAX];
    int n = (int)(base_name(file) - file);

    return snprintf(folder, sizeof(folder), "%.*s", n ? n : 1, n ? file : ".") < (int)sizeof(folder) &&
           stat(folder, ret) == 0;
}

static bool are_in_one_folder(const char *a, const char *b)
{
    struct stat folder_a, folder_b;

    return stat_folder_of(a, &folder_a) && stat_folder_of(b, &folder_b) &&
           folder_a.st_dev == folder_b.st_dev && folder_a.st_ino == folder_b.st_ino;
}

/* Whether python is the one of the environment that a variable names. */
static bool is_python_of(const char *variable, char *const *environment, const char *python)
{
    const char *prefix = envp_get(environment, variable);
    _cleanup_free_ char *file = prefix && *prefix ? strbuf_format("%s/bin/python", prefix) : NULL;

    return file && are_in_one_folder(python, file);
}

/* Whether the user named this program by its path, and not by a link or by PATH: argv[0] of a launcher may have been looked up. */
static bool is_called_by_path(const char *program, char *const *environment)
{
    int why;

    if (!strchr(program_invocation_name, '/') || !are_in_one_folder(program_invocation_name, program))
        return false;
    _cleanup_free_ char *on_path = program_on_path(base_name(program), environment, &why);
    return !on_path || !are_in_one_folder(on_path, program);
}

/* The interpreter of the environment that crun is installed in; malloc'ed or NULL. of_shell: the first one on PATH, or NULL. */
static char *python_beside_crun(char *const *environment, const char *of_shell)
{
    char program[PATH_MAX];

    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[n > 0 ? n : 0] = '\0';
    if (of_shell && !is_called_by_path(program, environment) &&
        (is_python_of("VIRTUAL_ENV", environment, of_shell) ||
         is_python_of("CONDA_PREFIX", environment, of_shell)))
        return NULL; /* crun is a tool, and another environment is active */
    return is_in_environment(program) ? python_in_folder_of(program) : NULL;
}

/* Without PYTHON_EXEC. Malloc'ed, or NULL. */
static char *choose_python(char *const *environment, const char *home)
{
    int why;
    char *file = home ? strdup(home) : python_beside_torchrun();

    if (file)
        return file;
    char *of_shell = program_on_path("python3", environment, &why);
    if (!of_shell)
        of_shell = program_on_path("python", environment, &why);
    char *of_crun = python_beside_crun(environment, of_shell);
    file = of_crun ? of_crun : of_shell;
    if (of_crun)
        free(of_shell);
    const char *venv = envp_get(environment, "VIRTUAL_ENV");
    if (file && venv && *venv && !is_python_of("VIRTUAL_ENV", environment, file))
        log_line("VIRTUAL_ENV is %s, but the workers run %s, %s; set PYTHON_EXEC for another one", venv, file,
                 of_crun ? "of the environment that crun is installed in" : "the first Python on PATH");
    return file;
}

/* home: an interpreter to be preferred to all but PYTHON_EXEC, or NULL. */
static int find_python(char *const *environment, const char *home, struct plan_command *command,
                       char **ret_file, char *error)
{
    const char *chosen = envp_get(environment, "PYTHON_EXEC");
    int why = 0;

    *ret_file = chosen ? program_on_path(chosen, environment, &why) : choose_python(environment, home);
    if (!*ret_file && chosen)
        return program_refuse(error, "cannot run Python: PYTHON_EXEC=%s: %s%s", chosen, strerror(why),
                              envp_get(environment, "CRUN_OUTPUT_FD") /* the front has chosen the path */
                                  ? "; make it there, or choose another one with --export=PYTHON_EXEC=PATH"
                                  : "");
    if (!*ret_file)
        return program_refuse(
            error,
            "no Python found (PYTHON_EXEC, python3 and python on PATH); set PYTHON_EXEC, or "
            "use --no-python for a program that is not a Python script");
    strlist_add_copy(&command->head, chosen ? chosen : *ret_file);
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
    TRY(find_python(environment, home, command, ret_file, error));
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

    *ret_file = program_on_path(job->program_name, environment, &why);
    if (!*ret_file && why == EACCES)
        return program_refuse(error, "%s: it is not executable: Permission denied; chmod +x it",
                              job->program_name);
    if (!*ret_file)
        return program_refuse(error, "%s: %s%s%s%s", job->program_name, strerror(why),
                              strchr(job->program_name, '/') ? "" : " on PATH",
                              *options_note_on_end(job->program_name) ? "." : "",
                              options_note_on_end(job->program_name));
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
    int why = errno;
    if (*options_note_on_end(path))
        return program_refuse(error, "%s: %s.%s", path, strerror(why), options_note_on_end(path));
    return program_refuse(
        error, "%s: %s%s%s", path, strerror(why),
        strchr(path, '/') ? "" : "; for a command on PATH use --no-python, for a module -m",
        job->output_fd ? "; crun --hosts copies no programs: put it there, or choose --chdir" : "");
}

/* pip and uv tie the scripts that they install to the interpreter beside them. Malloc'ed; NULL: this script is not tied. */
static char *python_beside_script(const char *script, const struct file_head *head)
{
    _cleanup_free_ char *real = realpath(script, NULL); /* pipx installs links */

    if (real && head->is_beside_script)
        return python_in_folder_of(real);
    bool is_tied = real && strchr(head->interpreter, '/') && are_in_one_folder(head->interpreter, real) &&
                   access(head->interpreter, X_OK) == 0;
    return is_tied ? strdup(head->interpreter) : NULL;
}

static int use_file(const struct job *job, char *const *environment, struct plan_command *command,
                    char **ret_file, char *error)
{
    bool varies = strchr(job->program_name, '$') != NULL;

    if (*job->program_name == '-')
        return use_python(job, environment, NULL, command, ret_file, error);
    for (int i = 0; i < (varies ? job->n_workers : 1); i++)
        TRY(check_script(job, i, error));
    struct file_head head = {.interpreter = ""};
    enum file_kind kind = varies ? FILE_OTHER : file_kind_of(job->program_name, &head);
    if (kind != FILE_PROGRAM) {
        _cleanup_free_ char *home =
            kind == FILE_SCRIPT_OF_PYTHON ? python_beside_script(job->program_name, &head) : NULL;
        return use_python(job, environment, home, command, ret_file, error);
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
