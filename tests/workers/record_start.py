"""Notes in FILE that a worker starts, and which processes of other generations of its job run at that moment; then executes it.

    record_start.py FILE COMMAND...

The line is written before the others are read, so that of two that start at the same time at least one sees the other."""

import os
import sys
import time


def start_time(pid):
    """In the kernel's clock ticks, as a number is given to another process later; None: it does not run."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def write(path, *words):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\n").encode())
    os.close(fd)


def main():
    path, command = sys.argv[1], sys.argv[2:]
    generation = os.environ.get("CRUN_GENERATION", os.environ["TORCHELASTIC_RESTART_COUNT"])
    write(path, "start", generation, os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid(), time.monotonic(),
          start_time(os.getpid()))
    with open(path) as lines:
        others = [line.split() for line in lines.readlines()[-200:] if line.startswith("start ")]
    for _, other, rank, _, pid, _, started in others:
        if other != generation and start_time(pid) == started:
            write(path, "overlap", generation, other, rank, pid, time.monotonic())
    os.execvp(command[0], command)


main()
