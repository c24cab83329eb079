"""Seeded stalls of one rank: 14 kinds in the phases where each exists, with and without another rank that still moves. For each case: whether
the first line names the awaited rank and its activity, and how long after the others began to wait.

Usage: stalls.py [--c N] [--torch N] [--at-once N] [--torch-at-once N] [--minutes M] [--seed S] [--resume FILE] [--case N]... [KIND...]

--c, --torch: cases with programs on libcrw (240) and with PyTorch on gloo (60); the kinds take turns.
--resume: each result is a line of that file, and what it has already is not run again: the first line has the seed.
--case: these numbers alone, with --seed and --c 0 or --torch 0.
Bounds: at most --wrong-max (3) cases that are wrong or missed; p95 of the latency 10 s from the second step on, 30 s before and where the
others have ended; no worker ended, none was left stopped or traced. Needs root for the frozen disk and the silent file system, and 8 loop devices.
"""

import argparse
import concurrent.futures
import json
import pathlib
import random
import sys
import tempfile
import threading
import time

import frozen
import stall_cases as stalls


class Results:
    def __init__(self, path):
        self.lock, self.path, self.found, self.seed = threading.Lock(), path, {}, None
        for line in path.read_text().splitlines() if path and path.exists() else ():
            self._take(json.loads(line))

    def _take(self, result):
        self.seed = result.get("seed", self.seed)
        if "number" in result:
            self.found[result["program"], result["number"]] = result

    def write(self, result):
        with self.lock:
            self._take(result)
            if self.path:
                with self.path.open("a") as f:
                    f.write(json.dumps(result) + "\n")


def run_one(results, case, deadline):
    if time.monotonic() > deadline:
        return
    with tempfile.TemporaryDirectory(prefix="crun-stall-", ignore_cleanup_errors=True) as name:
        try:
            result = stalls.run_case(case, pathlib.Path(name))
        except Exception as e:  # noqa: BLE001 (counts as wrong, and the others go on)
            result = stalls.new_result(case, "the test failed", repr(e))
    results.write(result)
    latency = f" after {result['latency_s']} s" if result["latency_s"] is not None else ""
    print(f"{case}: {result['verdict']}{latency}", flush=True)
    for what in ("killed", "touched"):
        if result[what]:
            print(f"  {what}: {result[what]}", flush=True)
    if result["verdict"] != "right":
        print("    " + result["line"].replace("\n", "\n    "), flush=True)


def run_all(results, cases, at_once, deadline):
    todo = [case for case in cases if (case.program, case.number) not in results.found]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        runs = {pool.submit(run_one, results, case, deadline): case for case in todo}
        for done in concurrent.futures.as_completed(runs):
            if done.exception():
                print(f"{runs[done]}: {done.exception()!r}", flush=True)


# ---- the summary


def row(name, results):
    right = sum(r["verdict"] == "right" for r in results)
    missed = sum(r["verdict"] == "missed" for r in results)
    late = [r["latency_s"] for r in results if r["latency_s"] is not None and not r["early"]]
    early = [r["latency_s"] for r in results if r["latency_s"] is not None and r["early"]]
    cells = [f"{len(results):5}", f"{right:5}", f"{len(results) - right - missed:5}", f"{missed:6}"]
    cells += [f"{value:6.1f}" if value is not None else "     -" for values in (late, early)
              for value in (stalls.median(values), stalls.share(values, 0.95))]
    print(f"{name:10}" + " ".join(cells), flush=True)
    return stalls.share(late, 0.95), stalls.share(early, 0.95)


def print_ratios(results):
    measured = [r["ratios"] for r in results if r["ratios"]]
    if measured:
        wall, cpu = ([m[i] for m in measured] for i in (0, 1))
        print(f"100 steps after a report against 100 before, {len(measured)} cases: time {stalls.median(wall):.2f} (p95 {stalls.share(wall, .95):.2f}), "
              f"processor time {stalls.median(cpu):.2f} (p95 {stalls.share(cpu, .95):.2f})", flush=True)
    resumed = [r for r in results if r["goes_on"] is not None]
    print(f"\"the ranks go on\": {sum(r['goes_on'] for r in resumed)} of {len(resumed)} that went on", flush=True)


def print_debug_server(results):
    """PyTorch's own tool beside: it has to be asked, and shows stacks of the ranks that answer."""
    beside = [r for r in results if r["program"] == "torch" and r["phase"] in ("load", "steps", "save") and r["line"] and ", 1 x " in r["case"]]
    answers = [r["debug_server"] for r in beside if r.get("debug_server")]
    print(f"PyTorch's debug server beside, {len(beside)} cases: it answered in {len(answers)}, with the stack of the awaited rank in "
          f"{sum(a['has_awaited'] for a in answers)}, after {stalls.median([a['s'] for a in answers]) or 0} s", flush=True)


def summarize(results, n_wanted, wrong_max):
    found = list(results.found.values())
    print(f"\nseed {results.seed}; {len(found)} of {n_wanted} cases run\nkind       cases right wrong missed   late: p50, p95  early: p50, p95 (s)")
    for kind in stalls.KINDS:
        if of_kind := [r for r in found if r["kind"] == kind]:
            row(kind, of_kind)
    print()
    for phase in stalls.PHASES:
        if of_phase := [r for r in found if r["phase"] == phase]:
            row(phase, of_phase)
    print()
    for program in ("c", "torch"):
        if of_program := [r for r in found if r["program"] == program]:
            row(program, of_program)
    late, early = row("all", found)
    print_ratios(found)
    print_debug_server(found)
    n_wrong = sum(r["verdict"] != "right" for r in found)
    n_killed, n_touched = sum(bool(r["killed"]) for r in found), sum(bool(r["touched"]) for r in found)
    print(f"{n_wrong} wrong or missed (bound {wrong_max}); p95 {late or 0:.1f} s from the second step on (bound {stalls.LATE_S}), {early or 0:.1f} s "
          f"before and where the others have ended (bound {stalls.EARLY_S}); killed {n_killed}, left stopped or traced {n_touched}", flush=True)
    return found and n_wrong <= wrong_max and (late or 0) <= stalls.LATE_S and (early or 0) <= stalls.EARLY_S and not n_killed and not n_touched


def cases_of(program, n, seed, kinds, numbers, can_freeze):
    able = [kind for kind in kinds if program in stalls.KINDS[kind]]
    random.Random(f"{seed} {program}").shuffle(able)
    return [stalls.draw(i, seed, program, able[i % len(able)], can_freeze) for i in range(n) if not numbers or i in numbers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--c", type=int, default=240)
    parser.add_argument("--torch", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--torch-at-once", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--resume", type=pathlib.Path)
    parser.add_argument("--case", type=int, action="append")
    parser.add_argument("--wrong-max", type=int, default=3)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    o = parser.parse_args()
    frozen.private_mounts()
    results = Results(o.resume)
    if results.seed is None:
        results.write({"seed": o.seed if o.seed is not None else random.SystemRandom().randrange(1 << 32)})
    reason = frozen.why_not()
    print(f"seed {results.seed}" + (f"; no frozen disk ({reason}): a parent of vfork() is in state D" if reason else ""), flush=True)
    deadline = time.monotonic() + 60 * o.minutes
    n = 0
    for program, count, at_once in (("c", o.c, o.at_once), ("torch", o.torch, o.torch_at_once)):
        cases = cases_of(program, count, results.seed, o.kinds or list(stalls.KINDS), o.case, not reason)
        run_all(results, cases, at_once, deadline)
        n += len(cases)
    return 0 if summarize(results, n, o.wrong_max) else 1


if __name__ == "__main__":
    sys.exit(main())
