#include "launcher/host/worker_beat_os.h"

#include <endian.h>
#include <string.h>
#include <unistd.h>

static bool get_report(const char *bytes, int64_t *ret_step, uint64_t *ret_ns)
{
    uint64_t step, at_ns;

    memcpy(&step, bytes, sizeof(step));
    memcpy(&at_ns, bytes + 8, sizeof(at_ns));
    if (at_ns == 0 || le64toh(step) > INT64_MAX) /* 0: the head was made, and no step was reported */
        return false;
    *ret_step = (int64_t)le64toh(step);
    *ret_ns = le64toh(at_ns);
    return true;
}

bool worker_beat_read(int fd, struct worker_beat *ret)
{
    char head[WORKER_BEAT_WHOLE_SIZE] = {0};
    struct worker_beat beat = {0};

    if (fd < 0 || pread(fd, head, sizeof(head), 0) < WORKER_BEAT_SIZE ||
        memcmp(head, WORKER_BEAT_MAGIC, strlen(WORKER_BEAT_MAGIC)) != 0 ||
        !get_report(head + 8, &beat.step, &beat.at_ns))
        return false;
    (void)get_report(head + WORKER_BEAT_SIZE, &beat.earlier_step, &beat.earlier_ns); /* or there is none */
    *ret = beat;
    return true;
}

double worker_beat_rate(const struct worker_beat *beat, uint64_t since_ns, uint64_t now_ns)
{
    if (beat->earlier_ns < since_ns || beat->earlier_ns == 0 || beat->earlier_ns >= beat->at_ns ||
        beat->earlier_step >= beat->step)
        return -1;
    double n_steps = (double)(beat->step - beat->earlier_step);
    double took_ns = (double)(beat->at_ns - beat->earlier_ns);
    double waited_ns = now_ns > beat->at_ns ? (double)(now_ns - beat->at_ns) : 0;
    double step_ns = took_ns / n_steps;
    return 1e9 / (waited_ns > step_ns ? waited_ns : step_ns);
}

size_t worker_collectives_read(int fd, struct worker_collective records[WORKER_COLLECTIVES_MAX])
{
    ssize_t n =
        fd >= 0 ? pread(fd, records, WORKER_COLLECTIVES_MAX * sizeof(*records), WORKER_COLLECTIVES_AT) : 0;

    return n > 0 ? (size_t)n / sizeof(*records) : 0;
}

uint32_t worker_cut_read(int fd, pid_t pid)
{
    struct worker_cut cut;

    return fd >= 0 && pread(fd, &cut, sizeof(cut), WORKER_CUT_AT) == sizeof(cut) && (pid_t)cut.pid == pid
               ? cut.from
               : 0;
}

void worker_cut_clear(int fd)
{
    const struct worker_cut none = {0};
    struct worker_cut cut;

    /* A file that no worker has written a cut into keeps its size. */
    if (fd >= 0 && pread(fd, &cut, sizeof(cut), WORKER_CUT_AT) == sizeof(cut) && cut.from > 0)
        (void)!pwrite(fd, &none, sizeof(none), WORKER_CUT_AT); /* memory that is there */
}
