"""SIGTERM at a random microsecond of crun's start-up: nothing may be left, and the exit code must be 1.

Before main() has run, the dynamic linker is at work and the signal has its default action: then crun ends
by SIGTERM itself, and must not have started anything.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import launches

STARTUP_US = 8000


def one_round(rng, folder):
    crun = launches.start(["--standalone", "--nproc-per-node=4", "--no-python", "sleep", "60"], {"TMPDIR": folder},
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.perf_counter() + rng.uniform(0, STARTUP_US) / 1e6
    while time.perf_counter() < until:
        pass
    crun.send_signal(signal.SIGTERM)
    try:
        code = crun.wait(timeout=60)
    except subprocess.TimeoutExpired:
        code = "none"
    left = list(launches.living(crun.tag).values())
    launches.kill_all(crun)
    return code, left + os.listdir(folder)


def run(rounds, seed=None):
    """(exit code -> rounds, [(round, code, left)])"""
    launches.adopt_orphans()
    rng = random.Random(seed)
    codes, bad = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            code, left = one_round(rng, folder)
            codes[code] = codes.get(code, 0) + 1
            if left or code not in (1, -signal.SIGTERM):
                bad.append((i, code, left))
    return codes, bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    codes, bad = run(args.rounds, args.seed)
    for i, code, left in bad:
        print(f"round {i}: exit code {code}, left: {left}")
    print(f"{args.rounds} rounds, exit codes {codes}: {len(bad)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
