"""Rounds of PyTorch jobs that crash once: each has to come back with exactly one restart.

    resume  a trainer with snapshots (tests/interop/scripts/resume.py); it ends with the parameters, bit for bit, of a
            run in which nothing crashed
    skew    a rank that comes late to its second attempt (skewed.py)

A few rounds of torchrun itself are counted beside them, for comparison only: it fails some of these.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import jobs
from launcher_pair import SCRIPTS, TORCHRUN

STEPS, CRASH_AT = 12, 5
ENVIRONMENT = {**os.environ, "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def launch(launcher, words, timeout_s):
    """(exit code or "hung", stderr)"""
    p = subprocess.Popen([*launcher, "--standalone", "--nproc-per-node=2", *map(str, words)], env=ENVIRONMENT,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, err = p.communicate(timeout=timeout_s)
        return p.returncode, err
    except subprocess.TimeoutExpired:
        p.terminate()  # torchrun ends its workers on the first SIGTERM, as crun does
        _, err = p.communicate(timeout=90)
        return "hung", err


def train(launcher, folder, timeout_s):
    """(what became of it, what it ended with)"""
    code, err = launch(launcher, ["--max-restarts=3", SCRIPTS / "resume.py", folder, STEPS, CRASH_AT], timeout_s)
    if code != 0:
        return f"exit code {code}" if code != "hung" else code, None, err
    end = json.loads((pathlib.Path(folder) / "end.json").read_text())
    return f"{end['restarts']} restarts", end, err


@functools.cache
def calm_weights():
    """Those of a run that does not crash, as its mark is there already."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "crashed").touch()
        outcome, end, err = train([jobs.crun()], folder, 300)
        assert outcome == "0 restarts" and end["begun at"] == 0, err
        return end["weights"]


def resume_round(launcher, timeout_s=300):
    """("recovered" or what went wrong instead, stderr)"""
    with tempfile.TemporaryDirectory() as folder:
        outcome, end, err = train(launcher, folder, timeout_s)
    if outcome != "1 restarts":
        return outcome, err
    if end["begun at"] != CRASH_AT - 1:
        return f"resumed at step {end['begun at']}", err
    return "recovered" if end["weights"] == calm_weights() else "other parameters", err


def skew_round(launcher, skew_s, timeout_s=300):
    code, err = launch(launcher, ["--max-restarts=1", SCRIPTS / "skewed.py", skew_s], timeout_s)
    return "recovered" if code == 0 else f"exit code {code}" if code != "hung" else code, err


def many(one_round, rounds, at_once):
    """{outcome: rounds}; the first few that went wrong are shown."""
    outcomes = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for i, (outcome, err) in enumerate(pool.map(lambda _: one_round(), range(rounds))):
            outcomes[outcome] += 1
            if (i + 1) % 10 == 0:
                print(f"  {i + 1} of {rounds}: {dict(outcomes)}", flush=True)
            if outcome != "recovered" and sum(outcomes.values()) - outcomes["recovered"] <= 3:
                print(f"round {i}: {outcome}\n{err[-2000:]}", flush=True)
    return dict(outcomes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("resume", "skew"))
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--torchrun-rounds", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--skew", type=float, default=2.0)
    args = parser.parse_args()
    if args.mode == "resume":
        one = resume_round
        calm_weights()
    else:
        one = functools.partial(skew_round, skew_s=args.skew)
    begin = time.monotonic()
    ours = many(lambda: one([jobs.crun()]), args.rounds, args.at_once)
    print(f"{args.mode}, crun: {args.rounds} rounds in {time.monotonic() - begin:.0f} s: {ours}", flush=True)
    begin = time.monotonic()
    with open(os.devnull, "w") as sys.stdout:
        theirs = many(lambda: one(TORCHRUN, timeout_s=120), args.torchrun_rounds, args.at_once)
    sys.stdout = sys.__stdout__
    print(f"{args.mode}, torchrun: {args.torchrun_rounds} rounds in {time.monotonic() - begin:.0f} s: {theirs}")
    return 0 if ours == {"recovered": args.rounds} else 1


if __name__ == "__main__":
    sys.exit(main())
