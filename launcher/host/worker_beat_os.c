#include "launcher/host/worker_beat_os.h"

#include <endian.h>
#include <string.h>
#include <unistd.h>

#include "proto/worker_memory.h"

bool worker_beat_read(int fd, struct worker_beat *ret)
{
    char head[WORKER_BEAT_SIZE];
    uint64_t step, at_ns;

    if (fd < 0 || pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
        memcmp(head, WORKER_BEAT_MAGIC, strlen(WORKER_BEAT_MAGIC)) != 0)
        return false;
    memcpy(&step, head + 8, sizeof(step));
    memcpy(&at_ns, head + 16, sizeof(at_ns));
    step = le64toh(step);
    if (at_ns == 0 || step > INT64_MAX) /* 0: the head was made, and no step was reported */
        return false;
    *ret = (struct worker_beat){.step = (int64_t)step, .at_ns = le64toh(at_ns)};
    return true;
}
