"""Jobs that are slow but move, at --hang-timeout=10: one rank writes a checkpoint, computes, compiles, loads data or only beats, in
steps of 25 s, while the others wait for it. No hang may be reported.

Usage: false_alarms.py [--runs N] [--hours H] [KIND...]    N runs (3) of H hours (2); a run has a job of each kind, all at once

All jobs share one core, so that the rest of the machine is left to others; what they and crun used of it is printed.
"""

import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import hangs
import jobs

KINDS = ("checkpoint", "compute", "compile", "data", "beat")
TIMEOUT_S = 10


def start(kind, seconds, folder):
    folder.mkdir()
    with open(folder / "output", "wb") as output:
        return subprocess.Popen([jobs.crun(), "--nproc-per-node=2", f"--hang-timeout={TIMEOUT_S}", f"--event-log={folder / 'events'}",
                                 f"--log-dir={folder / 'logs'}", "--no-python", sys.executable, jobs.ROOT / "tests/workers/slow_job.py",
                                 kind, str(seconds)], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
                                stdout=output, stderr=output)


def end(kind, p, folder, seconds):
    code = p.wait(seconds + 600)
    alarms = [e["groups"] for e in hangs.read_events(folder / "events") if e["event"] == "hang"]
    print(f"{kind:10} {seconds:.0f} s: exit code {code}, {len(alarms)} false alarms {alarms or ''}", flush=True)
    if code:
        print((folder / "output").read_text(errors="replace")[-2000:], flush=True)
    return code == 0 and not alarms


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_all(kinds, seconds):
    before, began = cpu_s(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="crun-slow-") as name:
        folders = {kind: pathlib.Path(name) / kind for kind in kinds}
        running = {kind: start(kind, seconds, folders[kind]) for kind in kinds}
        try:
            results = [end(kind, running[kind], folders[kind], seconds) for kind in kinds]
        finally:
            for p in running.values():
                hangs.end(p)
    print(f"used {100 * (cpu_s() - before) / (time.monotonic() - began):.0f} % of a core (at most 100)", flush=True)
    return all(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    o = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return 0 if all([run_all(o.kinds or KINDS, o.hours * 3600) for _ in range(o.runs)]) else 1


if __name__ == "__main__":
    sys.exit(main())
