"""SIGKILL for crun and its guardian in the same instant, while a cgroup contains the job: what is left a second later?

As orphan_rounds.py, whose ranks have relatives of every kind, but nothing at all may be left: no rank, no relative, no keeper,
no cgroup. In half of the rounds the two signals are up to --apart milliseconds apart, in either order.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time

import cgroups
import jobs
import launches
import orphan_rounds


def kill_apart(rng, pids, apart_ms):
    rng.shuffle(pids)
    for i, pid in enumerate(pids):
        if i:
            time.sleep(rng.uniform(0, apart_ms) / 1000)
        jobs.kill(pid, signal.SIGKILL)


def one_round(rng, args, group, folder):
    """(which, what is left)"""
    crun = launches.start(["--standalone", "--nproc-per-node=2", "--no-python", launches.family(), *rng.choice(([], ["deaf"]))],
                          {"TMPDIR": folder}, preexec_fn=lambda: cgroups.enter(group),
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0, args.within) / 1000)
    pids = [crun.pid, *filter(None, [launches.guardian(crun.pid)])]
    is_apart = rng.random() < 0.5
    if is_apart:
        kill_apart(rng, pids, args.apart)
    else:
        orphan_rounds.kill_together(pids)
    left, where = orphan_rounds.wait_until_gone(crun.tag, lambda name: False, args.patience)
    deadline = time.monotonic() + args.patience
    while cgroups.below(group) and time.monotonic() < deadline:
        time.sleep(0.005)
    left = [f"{pid} ({name})" for pid, name in left.items()] + cgroups.below(group) + where
    launches.kill_all(crun)
    return "apart" if is_apart else "together", left


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--patience", type=float, default=1.0, help="seconds")
    parser.add_argument("--apart", type=float, default=10, help="milliseconds")
    parser.add_argument("--within", type=float, default=40, help="milliseconds after the start of crun")
    args = parser.parse_args()
    if not cgroups.can_delegate():
        print("no cgroup (v2) can be made here")
        return 2
    launches.adopt_orphans()
    rng = random.Random(args.seed)
    counts, n_bad = {}, 0
    with tempfile.TemporaryDirectory() as folder, cgroups.delegated() as group:  # a killed crun cannot remove its own
        for i in range(args.rounds):
            which, left = one_round(rng, args, group, folder)
            counts[which] = counts.get(which, 0) + 1
            n_bad += bool(left)
            if left:
                print(f"round {i}: killed {which}, left after {args.patience} s: {left}")
    print(f"seed {args.seed}: {args.rounds} rounds {counts}: {n_bad} with something left")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
