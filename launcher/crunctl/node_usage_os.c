#include "launcher/crunctl/node_usage_os.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "launcher/ctl/job_status.h"
#include "launcher/crunctl/last_line.h"
#include "launcher/ctl/proc_usage_os.h"

enum { TAIL_SIZE = 4096 };

/* Only of a file: the job chooses the path, and a pipe would be emptied. */
static void read_last_line(struct worker_status *w)
{
    char tail[TAIL_SIZE];
    struct stat info;

    if (!w->log[0])
        return;
    _cleanup_close_ int fd = open(w->log, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode))
        return;
    ssize_t n = pread(fd, tail, sizeof(tail), info.st_size > TAIL_SIZE ? info.st_size - TAIL_SIZE : 0);
    if (n > 0)
        last_line_of(tail, (size_t)n, w->last_line, sizeof(w->last_line));
}

void node_usage_read(struct node_status *n)
{
    struct proc_usage usage;

    for (size_t i = 0; i < n->n_workers; i++) {
        struct worker_status *w = &n->workers[i];

        w->has_usage = proc_usage_read(w->pid, &usage);
        w->cpu_ms = w->has_usage ? usage.cpu_ms : 0;
        w->rss_kib = w->has_usage ? usage.rss_kib : 0;
        read_last_line(w);
    }
}
