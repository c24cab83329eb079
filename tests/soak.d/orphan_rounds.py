"""SIGKILL for crun, its guardian, or both at a random moment: what is left of the job a second (--patience) later?

Ranks have relatives in their group, in sessions of their own, twice forked, deaf to SIGTERM (family.c).
Nothing may be left after a second, or after as much more as the machine's load accounts for: a sleep of 5 ms
that takes 100 ms is a machine on which nothing gets done in time. When both die at the same instant, where no cgroup
contains the job, relatives have nothing that kills them: then the ranks must be gone, and the relatives are counted and killed by this program.
"""

import argparse
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import cgroups
import jobs
import launches

PATIENCE_S = 1.0


def kill_together(pids):
    """As close to one instant as two system calls get: stopped processes cannot react in between."""
    for pid in pids:
        jobs.kill(pid, signal.SIGSTOP)
    for pid in pids:
        jobs.kill(pid, signal.SIGKILL)


def describe(pid):
    """Where a process that should be gone is."""
    wanted = ("State", "PPid", "SigPnd", "ShdPnd", "SigBlk")
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        where = pathlib.Path(f"/proc/{pid}/wchan").read_text()
    except OSError as e:
        return f"    {pid}: {e}"
    facts = [" ".join(line.split()) for line in status if line.split(":")[0] in wanted]
    return f"    {pid}: {', '.join(facts)}, in {where}, children {jobs.children(pid)}"


def wait_until_gone(tag, also_fine, patience_s):
    """(what is left, lines on it). Each round of looking ends with a sleep; how late it ends tells the load, and
    twenty such delays (a chain of that many processes has to run until all are gone) are added to the patience."""
    begin, late = time.monotonic(), 0.0
    while True:
        left = {pid: name for pid, name in launches.living(tag).items() if not also_fine(name)}
        if not left:
            return left, []
        if time.monotonic() > begin + patience_s + 20 * late:
            return left, [f"    a sleep of 5 ms ended up to {late * 1000:.0f} ms late"] + [describe(pid) for pid in left]
        before = time.monotonic()
        time.sleep(0.005)
        late = max(late, time.monotonic() - before - 0.005)


def one_round(rng, victim, max_ms, folder, patience_s):
    crun = launches.start(["--standalone", "--nproc-per-node=2", "--no-python", launches.family(), *rng.choice(([], ["deaf"]))],
                          {"TMPDIR": folder},
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(rng.uniform(0, max_ms) / 1000)
    guardian = launches.guardian(crun.pid)
    victims = {"crun": [crun.pid], "guardian": [guardian], "both": [crun.pid, guardian]}[victim]
    victims = [pid for pid in victims if pid]
    if not victims:
        victims = [crun.pid]
        victim = "crun"
    kill_together(victims)
    relatives_may_stay = victim == "both" and not cgroups.can_delegate()
    left, where = wait_until_gone(crun.tag, lambda name: relatives_may_stay and name == "relative", patience_s)
    stayed = len(launches.living(crun.tag)) if relatives_may_stay else 0
    code = launches.kill_all(crun)
    if victim == "guardian" and code != 1 and not left:
        left = {"exit code of crun": code}
    return victim, left, where, stayed


def run(rounds, seed=None, victims=("crun", "guardian", "both"), max_ms=40, patience_s=PATIENCE_S):
    """(rounds by victim, [(round, victim, left, lines on where that was)], relatives left by double kills)"""
    launches.adopt_orphans()
    rng = random.Random(seed)
    counts, bad, stayed = {}, [], 0
    with tempfile.TemporaryDirectory() as folder:  # a killed crun cannot remove its own
        for i in range(rounds):
            victim, left, where, n = one_round(rng, rng.choice(victims), max_ms, folder, patience_s)
            counts[victim] = counts.get(victim, 0) + 1
            stayed += n
            if left:
                bad.append((i, victim, left, where))
    return counts, bad, stayed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    counts, bad, stayed = run(args.rounds, args.seed, patience_s=args.patience)
    for i, victim, left, where in bad:
        print(f"round {i}: {victim} killed, left after {args.patience} s: {left}", *where, sep="\n")
    print(f"{args.rounds} rounds {counts}: {len(bad)} with something left; relatives left by double kills: {stayed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
