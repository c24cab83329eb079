"""Seeded hangs in gloo jobs of four ranks: how often crun names the rank that the others wait for first, and how long after
the time-out, for each kind. Needs root for the kind "disk", a file system whose reads never end.

Usage: hang_kinds.py [--at-once N] [--resume FILE] [--debugger N] [N] [KIND...]    N jobs of each kind (40)
KIND: skip order loader sleep python c stop disk raised store

--at-once: so many jobs run side by side; the kinds take turns, so that those that use a core ("python", "c") are spread.
--debugger: afterwards N jobs of each kind with PyTorch's own debug server (torch.distributed.debug) and without crun's watch: its page
of stacks is asked for at the time-out. Answered: the page came. The culprit can be seen: the three others show the same stack of the main
thread, and the culprit another one, or none; the page itself names no rank. These results are printed, they are not judged.
--resume: each result is a line of that file, and what it has already is not run again.
"""

import argparse
import concurrent.futures
import json
import pathlib
import sys
import tempfile
import threading

import hangs

RATE_MIN, LATE_MAX_S, TIMEOUT_S = 0.95, 5.0, 10


class Results:
    """Lines {"kind", "number", "culprit", "late_s"} in a file, or in memory alone."""

    def __init__(self, path):
        self.lock, self.path, self.found = threading.Lock(), path, {}
        for line in path.read_text().splitlines() if path and path.exists() else ():
            self._take(json.loads(line))

    def _take(self, result):
        self.found[result["kind"], result["number"]] = result

    def add(self, result):
        with self.lock:
            self._take(result)
            if self.path:
                with self.path.open("a") as f:
                    f.write(json.dumps(result) + "\n")

    def of(self, kind, n):
        return [r for (k, number), r in self.found.items() if k == kind and number < n]


def run_job(results, kind, number):
    with tempfile.TemporaryDirectory(prefix="crun-hangs-") as folder:
        report = hangs.run_hang(kind, pathlib.Path(folder), TIMEOUT_S)
    results.add({"kind": kind, "number": number, "culprit": report.culprit, "late_s": round(report.late_s, 2)})
    if not report.culprit:
        print(f"  {kind} {number}: another rank first: {report.groups}", flush=True)


def run_debugger(results, kind, number):
    with tempfile.TemporaryDirectory(prefix="crun-hangs-") as folder:
        page, is_seen = hangs.run_debug_server(kind, pathlib.Path(folder), TIMEOUT_S)
    results.add({"kind": f"debugger {kind}", "number": number, "seen": is_seen, "s": page.seconds})


def print_debugger(kind, results):
    seconds = sorted(r["s"] for r in results if r["s"] is not None)
    times = f"seconds: median {seconds[len(seconds) // 2]:.1f}, longest {seconds[-1]:.1f}" if seconds else ""
    print(f"debug server, {kind:7} answered {len(seconds)}/{len(results)}, the culprit can be seen in {sum(r['seen'] for r in results)}; "
          f"{times}", flush=True)


def judge(kind, results, n):
    late = sorted(r["late_s"] for r in results)
    n_right = sum(r["culprit"] for r in results)
    if len(late) < n:
        print(f"{kind:7} has {len(late)} of {n} results", flush=True)
        return False
    print(f"{kind:7} culprit first {n_right}/{n}; seconds after the time-out: median {late[n // 2]:.1f}, longest {late[-1]:.1f}",
          flush=True)
    return n_right >= RATE_MIN * n and late[-1] <= LATE_MAX_S


def run_all(at_once, results, run, todo):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        runs = {pool.submit(run, results, *job): job for job in todo}
        for done in concurrent.futures.as_completed(runs):
            if done.exception():
                print(f"  {runs[done]}: {done.exception()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--debugger", type=int, default=0)
    parser.add_argument("n", type=int, nargs="?", default=40)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    o = parser.parse_args()
    kinds = o.kinds or list(hangs.KINDS)
    results = Results(o.resume)
    run_all(o.at_once, results, run_job, [(kind, i) for i in range(o.n) for kind in kinds if (kind, i) not in results.found])
    run_all(o.at_once, results, run_debugger,
            [(kind, i) for i in range(o.debugger) for kind in kinds if (f"debugger {kind}", i) not in results.found])
    for kind in kinds if o.debugger else ():
        print_debugger(kind, results.of(f"debugger {kind}", o.debugger))
    return 0 if all([judge(kind, results.of(kind, o.n), o.n) for kind in kinds if o.n]) else 1


if __name__ == "__main__":
    sys.exit(main())
