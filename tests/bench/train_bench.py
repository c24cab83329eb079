#!/usr/bin/env python3
"""`train` and PyTorch DDP over gloo on the same recipes, two workers each, in turns; prints the ratios.

    tests/bench/run train_bench.py [--rounds N] [toy|classifier|mnist ...]
    tests/bench/run train_bench.py --held [--rounds N] [toy|classifier|mnist ...]

Speed is that of the training loop, the median over all epochs but the first of each run, which in PyTorch
also makes its buckets. The classifier prints every step in both.

--held: instead of beside PyTorch, with and without the state of each step left in memory that crun holds.
"""

import argparse
import pathlib
import shutil
import statistics
import tempfile

import jobs

WORKERS = 2

# program -> options of train, options of PyTorch, unit, samples of a unit
RECIPES = {
    "toy": (("--epochs", 2000), ("--epochs", 10), "steps/s", WORKERS * 10),
    "classifier": (("--epochs", 100), ("--epochs", 6), "steps/s", WORKERS * 8),
    "mnist": (("--epochs", 3, "--limit", 12800), ("--epochs", 3, "--limit", 6400), "images/s", 1),
}


def speeds(job):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "metrics"
        p = jobs.run([*job, "--metrics", str(metrics)], timeout=900)
        if p.returncode != 0:
            raise SystemExit(p.stderr)
        epochs = jobs.read_lines(metrics, "loss_all")
        return [e.get("images_per_s") or e["samples_per_s"] for e in epochs[1:]]


def measure_held(program, rounds):
    options, _, unit, per_unit = RECIPES[program]
    job = [str(word) for word in jobs.train_job(WORKERS, *options, program=program)]
    at = job.index(str(jobs.train()))
    without = [*job[:at], shutil.which("env"), "-u", "CRUN_STATE_FD", *job[at:]]
    held, not_held = [], []
    for _ in range(rounds):
        not_held.append(statistics.median(speeds(without)))
        held.append(statistics.median(speeds(job)))
    held, not_held = statistics.median(held) / per_unit, statistics.median(not_held) / per_unit
    print(f"{program:<11} held in memory {held:>11,.0f} {unit:<9} not held {not_held:>11,.0f} {unit:<9} "
          f"a step takes {1e6 / held - 1e6 / not_held:+.3f} us more, {100 * (not_held / held - 1):+.1f} %", flush=True)


def measure(program, rounds):
    ours_options, their_options, unit, per_unit = RECIPES[program]
    ours, theirs = [], []
    for _ in range(rounds):
        theirs += speeds(jobs.torch_job(WORKERS, *their_options, program=program))
        ours += speeds(jobs.train_job(WORKERS, *ours_options, program=program))
    ours, theirs = statistics.median(ours) / per_unit, statistics.median(theirs) / per_unit
    print(f"{program:<11} train {ours:>11,.0f} {unit:<9} PyTorch DDP {theirs:>7,.0f} {unit:<9} ratio {ours / theirs:8,.1f}",
          flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--held", action="store_true")
    p.add_argument("programs", nargs="*", default=list(RECIPES))
    a = p.parse_args()
    for program in a.programs:
        (measure_held if a.held else measure)(program, a.rounds)


if __name__ == "__main__":
    main()
