#include "launcher/report/own_error_os.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "launcher/report/report_json.h"
#include "launcher/util/envp.h"
#include "launcher/util/log_os.h"
#include "launcher/util/read_disk_os.h"
#include "base/cleanup.h"

void own_error_write(char *const *environment, int signal, const char *text)
{
    const char *path = envp_get(environment, "TORCHELASTIC_ERROR_FILE");
    char message[LOG_LINE_SIZE];

    if (!path || !*path)
        return;
    if (signal) /* programs that parse the file of torchrun look for these words */
        (void)snprintf(message, sizeof(message), "SignalException: Process %d got signal: %d", getpid(),
                       signal);
    else if (text)
        (void)snprintf(message, sizeof(message), "%s", text); /* may be cut */
    else
        log_copy_last(message);
    _cleanup_free_ char *file = report_json_of_launcher(message, time(NULL));
    int r = file ? write_disk_file(path, file) : 0;
    if (r)
        log_line("cannot write the error file %s: %s", path, strerror(-r));
}
