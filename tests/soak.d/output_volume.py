"""Much output through `-t 3`: complete, in order for each stream, and crun's memory flat.

The reader of crun's stdout checks every line while it arrives; the log files must hold the same bytes.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import jobs

MEMORY_LIMIT_KIB = 8 << 10


def peak_memory_kib(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])
    except (FileNotFoundError, ProcessLookupError, IndexError):  # it has ended
        return 0


def read_lines(crun, n_workers):
    """(lines of each worker, wrong lines, crun's peak memory in KiB)"""
    following, wrong, memory = [0] * n_workers, [], 0
    for i, line in enumerate(crun.stdout):
        if i % 100000 == 0:
            memory = max(memory, peak_memory_kib(crun.pid))
        prefix, _, rest = line.partition(b":")
        rank, number, _ = rest.split(b" ", 2)
        if prefix != b"[default%s]" % rank or int(number) != following[int(rank)]:
            wrong.append(line[:60])
        following[int(rank)] = int(number) + 1
    return following, wrong, memory


def run(n_bytes, n_workers=2, pause_s=0):
    """What was seen of n_bytes written by all workers together, read after a pause."""
    chatter = str(jobs.build_folder() / "tests" / "workers" / "chatter")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        crun = subprocess.Popen([jobs.crun(), "--standalone", f"--nproc-per-node={n_workers}", "-t", "3", f"--log-dir={folder}",
                                 "--no-python", chatter, str(n_bytes // n_workers)],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        time.sleep(pause_s)
        lines, wrong, memory = read_lines(crun, n_workers)
        code = crun.wait()
        logs = [path.read_bytes().count(b"\n") for path in sorted(pathlib.Path(folder).rglob("stdout.log"))]
        return {"exit code": code, "lines": lines, "wrong lines": wrong[:5], "lines in log files": logs,
                "peak memory KiB": memory, "seconds": round(time.monotonic() - begin, 1)}


def is_fine(seen):
    return (seen["exit code"] == 0 and not seen["wrong lines"] and seen["lines"] == seen["lines in log files"]
            and all(seen["lines"]) and seen["peak memory KiB"] < MEMORY_LIMIT_KIB)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1 << 30)
    args = parser.parse_args()
    seen = run(args.bytes)
    print(f"{args.bytes} bytes: {seen}")
    return 0 if is_fine(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
