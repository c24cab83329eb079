#include "tests/support/c/snapshots/faulty_io.h"

#include <errno.h>
#include <unistd.h>

static bool is_due(struct fault *f, enum call call)
{
    if (f->only && f->only != call)
        return false;
    if (++f->n_calls == f->at)
        f->met = call;
    else if (f->mode != FAULT_ERROR_STAYS || f->met != call)
        return false;
    return true;
}

static bool is_error(const struct fault *f)
{
    return f->mode == FAULT_ERROR || f->mode == FAULT_ERROR_STAYS;
}

/* Around one call of the system: runs it unless the fault comes first. */
#define FAULTY(call, operation)                                                                              \
    struct fault *f = data;                                                                                  \
    bool due = is_due(f, call);                                                                              \
    if (due && is_error(f))                                                                                  \
        return f->error;                                                                                     \
    if (due && f->mode != FAULT_CRASH_AFTER)                                                                 \
        _exit(0);                                                                                            \
    int r = (operation);                                                                                     \
    if (due)                                                                                                 \
        _exit(0);                                                                                            \
    return r

static int faulty_create(void *data, int folder_fd, const char *name)
{
    FAULTY(CALL_CREATE, snapshot_io_system.create(NULL, folder_fd, name));
}

static int faulty_reserve(void *data, int fd, uint64_t n_bytes)
{
    FAULTY(CALL_RESERVE, snapshot_io_system.reserve(NULL, fd, n_bytes));
}

static ssize_t faulty_write(void *data, int fd, const void *bytes, size_t n_bytes)
{
    struct fault *f = data;
    bool due = is_due(f, CALL_WRITE);
    ssize_t n;

    if (f->n_interrupts > 0) {
        f->n_interrupts--;
        return -EINTR;
    }
    if (due && is_error(f))
        return f->error;
    if (due && f->mode == FAULT_CRASH_BEFORE)
        _exit(0);
    if (due && f->mode == FAULT_CRASH_HALF)
        n_bytes /= 2;
    if (f->write_max && n_bytes > f->write_max)
        n_bytes = f->write_max;
    n = snapshot_io_system.write(NULL, fd, bytes, n_bytes);
    if (due)
        _exit(0);
    return n;
}

static int faulty_sync(void *data, int fd)
{
    FAULTY(CALL_SYNC, snapshot_io_system.sync(NULL, fd));
}

/* The descriptor is gone even when close() fails. */
static int faulty_close(void *data, int fd)
{
    struct fault *f = data;
    bool due = is_due(f, CALL_CLOSE);

    if (due && !is_error(f) && f->mode != FAULT_CRASH_AFTER)
        _exit(0);
    (void)snapshot_io_system.close(NULL, fd);
    if (due && f->mode == FAULT_CRASH_AFTER)
        _exit(0);
    return due ? f->error : 0;
}

static int faulty_rename(void *data, int folder_fd, const char *from, const char *to)
{
    FAULTY(CALL_RENAME, snapshot_io_system.rename(NULL, folder_fd, from, to));
}

static int faulty_remove(void *data, int folder_fd, const char *name)
{
    FAULTY(CALL_REMOVE, snapshot_io_system.remove(NULL, folder_fd, name));
}

struct snapshot_io faulty_io(struct fault *f)
{
    return (struct snapshot_io){
        .create = faulty_create,
        .reserve = faulty_reserve,
        .write = faulty_write,
        .sync = faulty_sync,
        .close = faulty_close,
        .rename = faulty_rename,
        .remove = faulty_remove,
        .data = f,
        .end_ms = snapshot_io_system.end_ms,
    };
}
