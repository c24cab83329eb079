/*
 * Which program runs, in the order of asking:
 *   --no-python        the command, found on PATH
 *   -m                 Python, with a module's name nobody checks but Python
 *   -, -c, ...         Python: no file, but what its own command line makes of it ("-- -m module")
 *   *.py               Python, whatever the file looks like
 *   ELF or "#!"        the file itself, which must be executable (a Python script with a "#!" line but
 *                      without the x bit still goes to Python: torchrun users have such)
 *   anything else      Python (a folder or a zip with __main__.py, a script without a suffix)
 *
 * Python is $PYTHON_EXEC, else bin/python of the active virtual environment, else python3 or python on PATH.
 */

#include "launcher/program_os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/environment.h"
#include "launcher/job.h"
#include "launcher/plan.h"
#include "proto/base/cleanup.h"

__attribute__((format(printf, 2, 3))) static int refuse(char *error, const char *format, ...)
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
 * *ret_error tells why there is none. */
static char *find_on_path(const char *name, char *const *environment, int *ret_error)
{
    const char *path = environment_get(environment, "PATH");

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

/* ------------------------------------------------------------------ kinds */

enum file_kind { FILE_PROGRAM, FILE_SCRIPT_OF_PYTHON, FILE_OTHER };

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* What the first bytes say. An unreadable file can still be executed: only the kernel knows. */
static enum file_kind kind_of(const char *path)
{
    char head[128] = "";

    if (ends_with(path, ".py") || is_folder(path))
        return FILE_OTHER;
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno == EACCES && access(path, X_OK) == 0 ? FILE_PROGRAM : FILE_OTHER;
    ssize_t n = read(fd, head, sizeof(head) - 1);
    if (n >= 4 && memcmp(head, "\177ELF", 4) == 0)
        return FILE_PROGRAM;
    if (n < 2 || memcmp(head, "#!", 2) != 0)
        return FILE_OTHER;
    head[strcspn(head, "\n")] = '\0';
    return strstr(head, "python") ? FILE_SCRIPT_OF_PYTHON : FILE_PROGRAM;
}

/* ------------------------------------------------------------------ commands */

static int find_python(char *const *environment, struct plan_command *command, char **ret_file, char *error)
{
    const char *chosen = environment_get(environment, "PYTHON_EXEC");
    const char *venv = environment_get(environment, "VIRTUAL_ENV");
    char *in_venv = NULL;
    int why = 0;

    if (chosen) {
        *ret_file = find_on_path(chosen, environment, &why);
        if (!*ret_file)
            return refuse(error, "cannot run Python: PYTHON_EXEC=%s: %s", chosen, strerrordesc_np(why));
        strlist_add_copy(&command->head, chosen);
        return 0;
    }
    if (venv && *venv && asprintf(&in_venv, "%s/bin/python", venv) >= 0 && access(in_venv, X_OK) == 0) {
        *ret_file = in_venv;
    } else {
        free(in_venv);
        *ret_file = find_on_path("python3", environment, &why);
        if (!*ret_file)
            *ret_file = find_on_path("python", environment, &why);
    }
    if (!*ret_file)
        return refuse(error, "no Python found (PYTHON_EXEC, VIRTUAL_ENV, python3 and python on PATH); set "
                             "PYTHON_EXEC, or use --no-python for a program that is not a Python script");
    strlist_add_copy(&command->head, *ret_file);
    return 0;
}

/* What PYTHON -c executes for --run-path: the script as __main__, errors recorded as by @record. */
static const char run_path_code[] = "import runpy, sys; "
                                    "from torch.distributed.elastic.multiprocessing.errors import record; "
                                    "sys.argv = sys.argv[1:]; "
                                    "record(runpy.run_path)(sys.argv[0], run_name='__main__')";

static int take_python(const struct job *job, char *const *environment, struct plan_command *command,
                       char **ret_file, char *error)
{
    int r = find_python(environment, command, ret_file, error);

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

static int take_executable(const struct job *job, char *const *environment, struct plan_command *command,
                           char **ret_file, char *error)
{
    int why;

    *ret_file = find_on_path(job->program_name, environment, &why);
    if (!*ret_file && why == EACCES)
        return refuse(error, "%s: it is not executable: Permission denied; chmod +x it", job->program_name);
    if (!*ret_file)
        return refuse(error, "%s: %s%s", job->program_name, strerrordesc_np(why),
                      strchr(job->program_name, '/') ? "" : " on PATH");
    strlist_add_copy(&command->head, job->program_name);
    return 0;
}

/* The script of one worker must be there; the name may contain ${local_rank}. */
static int check_script(const struct job *job, int local_rank, char *error)
{
    _cleanup_free_ char *path = plan_substitute(job->program_name, local_rank);

    if (!path)
        return refuse(error, "out of memory");
    if (access(path, F_OK) == 0)
        return 0;
    return refuse(error, "%s: %s%s", path, strerrordesc_np(errno),
                  strchr(path, '/') ? "" : "; for a command on PATH use --no-python, for a module -m");
}

static int take_file(const struct job *job, char *const *environment, struct plan_command *command,
                     char **ret_file, char *error)
{
    bool varies = strchr(job->program_name, '$') != NULL;

    if (*job->program_name == '-')
        return take_python(job, environment, command, ret_file, error);
    for (int i = 0; i < (varies ? job->n_workers : 1); i++) {
        int r = check_script(job, i, error);
        if (r)
            return r;
    }
    enum file_kind kind = varies ? FILE_OTHER : kind_of(job->program_name);
    bool executable = kind != FILE_OTHER && access(job->program_name, X_OK) == 0;
    if (kind == FILE_OTHER || (kind == FILE_SCRIPT_OF_PYTHON && !executable))
        return take_python(job, environment, command, ret_file, error);
    if (!executable)
        return refuse(error, "%s: it is not executable: Permission denied; chmod +x it", job->program_name);
    strlist_add_copy(&command->head, job->program_name);
    *ret_file = strdup(job->program_name);
    return *ret_file ? 0 : refuse(error, "out of memory");
}

int program_find(const struct job *job, char *const *environment, struct plan_command *ret_command,
                 char **ret_file, char error[PROGRAM_ERROR_SIZE])
{
    struct plan_command command = {.args = job->program_args};
    char *file = NULL;
    int r;

    if (job->program == JOB_PROGRAM_EXECUTABLE)
        r = take_executable(job, environment, &command, &file, error);
    else if (job->program == JOB_PROGRAM_FILE)
        r = take_file(job, environment, &command, &file, error);
    else
        r = take_python(job, environment, &command, &file, error);
    if (!r && command.head.failed)
        r = refuse(error, "out of memory");
    if (r) {
        strlist_finish(&command.head);
        free(file);
        return r;
    }
    *ret_command = command;
    *ret_file = file;
    return 0;
}
