"""Three jobs at once that are slow but move (tests/workers/slow_moves.py): uneven steps, saves of 30 s, validation on rank 0 alone, bubbles of a
pipeline, pauses of 60 s for a compiler. At most one line about a stall, none that blames a rank that did not work, and no report on a hang.

Usage: stall_false_lines.py [--minutes M] [--seed S] [--ranks N]    (30 minutes, 3 ranks)
"""

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import hangs
import jobs

PLANS = ("uneven", "pipeline", "compile")
LATE_S = 3  # between the look and the line


def start(plan, seconds, seed, ranks, folder):
    folder.mkdir()
    with open(folder / "output", "wb") as output:
        return subprocess.Popen([jobs.crun(), "--standalone", f"--nproc-per-node={ranks}", f"--event-log={folder / 'events'}",
                                 f"--log-dir={folder / 'logs'}", "--no-python", sys.executable, jobs.ROOT / "tests/workers/slow_moves.py",
                                 plan, str(seconds), str(seed), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"},
                                stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def works(folder, rank, at_s):
    """What the rank did at that time, or in the LATE_S before; None: it waited."""
    for line in reversed((folder / f"work.{rank}").read_text().splitlines()):
        began, ended, what = line.split()
        if float(began) <= at_s and (float(ended) == 0 or float(ended) >= at_s - LATE_S):
            return what
    return None


def judge_line(plan, folder, event):
    """Whether the line is right about the rank."""
    found = re.search(r" for rank (\d+) on ", event["groups"][0])
    rank = event.get("rank", int(found[1]) if found else None)
    did = works(folder, rank, event["monotonic_ns"] / 1e9) if rank is not None else None
    print(f"  {plan}: {'blames wrongly' if did is None else f'rank {rank} {did}'}: {event['groups'][0]}", flush=True)
    return did is not None


def end(plan, p, folder, seconds):
    """(whether all is well, number of lines)"""
    code = p.wait(seconds + 900)
    events = hangs.read_events(folder / "events")
    lines = [e for e in events if e["event"] == "stall"]
    alarms = [e["groups"] for e in events if e["event"] == "hang"]
    are_right = [judge_line(plan, folder, e) for e in lines]
    print(f"{plan:9} {seconds:.0f} s: exit code {code}, {len(lines)} lines, {are_right.count(False)} of them wrong, {len(alarms)} hangs "
          f"{alarms or ''}", flush=True)
    if code:
        print((folder / "output").read_text(errors="replace")[-2000:], flush=True)
    return code == 0 and not alarms and all(are_right), len(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--ranks", type=int, default=3)
    o = parser.parse_args()
    print(f"seed {o.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="crun-slow-") as name:
        folders = {plan: pathlib.Path(name) / plan for plan in PLANS}
        running = {plan: start(plan, o.minutes * 60, o.seed, o.ranks, folders[plan]) for plan in PLANS}
        try:
            results = [end(plan, running[plan], folders[plan], o.minutes * 60) for plan in PLANS]
        finally:
            for p in running.values():
                hangs.end(p)
    n_lines = sum(n for _, n in results)
    print(f"{n_lines} lines (bound 1)", flush=True)
    return 0 if all(is_well for is_well, _ in results) and n_lines <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
