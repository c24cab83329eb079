"""How long the callbacks of the event loops take: the process tests run with a library that measures each of them
(tests/fakes/measured_loop.c) in every crun and crund that they start.

Prints the 99.9th percentile and the longest of all callbacks in CPU time of the loop's thread, and the functions whose
longest call took more than LIMIT_MS. Time passed is printed beside it: with other processes on the CPUs it is mostly theirs.
Fails when a callback took longer than --limit-ms, if that is given, or when nothing was measured.

Usage: loop_callbacks.py [--limit-ms N] [PYTEST ARGUMENT...]
"""

import bisect
import collections
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

import jobs

LIMIT_MS = 5
DEFAULT = [f"tests/integration/test_{name}.py" for name in
           ("crun", "crun_nodes", "crun_static", "crun_signals", "crun_output", "crun_report", "crund", "rounds", "rounds_state",
            "replace")]


@functools.cache
def symbols(program):
    """(address, name) of the program's functions, by address."""
    lines = subprocess.run(["nm", "-n", "--defined-only", program], capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(a, 16), n) for a, t, n in (line.split() for line in lines) if t in "tT"]


def name_of(program, offset):
    at = bisect.bisect_right(symbols(program), (offset, "~")) - 1
    return f"{pathlib.Path(program).name}: {symbols(program)[at][1] if at >= 0 else hex(offset)}"


def bucket_end_us(bucket):
    return 2 ** (bucket // 8) * (1 + (bucket % 8 + 1) / 8) / 1000


def collect(folder):
    """(callback -> [count, longest CPU ms, longest ms], bucket -> count, number of programs)"""
    functions, buckets, n_programs = {}, collections.Counter(), 0
    for path in pathlib.Path(folder).iterdir():
        program = None
        for line in path.read_text().splitlines():
            kind, *fields = line.split()
            if kind == "program":
                program = fields[0]
                n_programs += 1
            elif kind == "cpu":
                buckets[int(fields[0])] += int(fields[1])
            else:
                f = functions.setdefault(name_of(program, int(fields[0], 16)), [0, 0, 0])
                f[0] += int(fields[1])
                f[1] = max(f[1], int(fields[2]) / 1e6)
                f[2] = max(f[2], int(fields[3]) / 1e6)
    return functions, buckets, n_programs


def percentile_us(buckets, part):
    rest = sum(buckets.values()) * part
    for bucket in sorted(buckets):
        rest -= buckets[bucket]
        if rest <= 0:
            return bucket_end_us(bucket)
    return 0


def main():
    args, limit_ms = sys.argv[1:], None
    if args[:1] == ["--limit-ms"]:
        limit_ms, args = float(args[1]), args[2:]
    library = jobs.build_folder() / "tests/fakes/libmeasured_loop.so"
    with tempfile.TemporaryDirectory() as folder:
        tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(args or DEFAULT)], cwd=jobs.ROOT,
                               env={**os.environ, "LD_PRELOAD": str(library), "MEASURED_LOOP": folder})
        functions, buckets, n_programs = collect(folder)
    slow = sorted(((cpu, wall, n, name) for name, (n, cpu, wall) in functions.items() if cpu > LIMIT_MS), reverse=True)
    longest = max((cpu for _, cpu, _ in functions.values()), default=0)
    print(f"{sum(buckets.values())} callbacks in {n_programs} programs: CPU time p99 {percentile_us(buckets, 0.99):.0f} us, "
          f"p99.9 {percentile_us(buckets, 0.999):.0f} us, longest {longest:.1f} ms; {len(slow)} functions above {LIMIT_MS} ms")
    for cpu, wall, n, name in slow:
        print(f"  {name}: longest {cpu:.1f} ms of CPU time ({wall:.1f} ms passed), {n} calls")
    if tests.returncode or not buckets:
        return 1
    return 1 if limit_ms and longest > limit_ms else 0


if __name__ == "__main__":
    sys.exit(main())
