"""Rounds of `train` with a worker SIGKILLed at a random moment. Each must end by itself with the parameters of
the undisturbed run, bit for bit, and leave no process and no unreadable snapshot behind."""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import jobs


def undisturbed(folder, options, n_workers):
    metrics = pathlib.Path(folder) / "calm.jsonl"
    started = time.monotonic()
    p = jobs.run(jobs.train_job(n_workers, *options, "--metrics", metrics))
    assert p.returncode == 0, p.stderr
    epochs, _ = jobs.read_metrics(metrics)
    return epochs[-1]["param_crc32c"], time.monotonic() - started


def one_round(folder, options, n_workers, delay, rank):
    """Returns (final crc, number of resumes, was somebody killed, seconds)."""
    folder = pathlib.Path(folder)
    metrics = folder / "metrics.jsonl"
    args = jobs.train_job(n_workers, *options, "--snapshot-dir", folder / "snapshots", "--snapshot-every", 7,
                          "--metrics", metrics, crun_args=["--max-restarts=2"])
    started = time.monotonic()
    with open(folder / "stderr", "w") as err:
        p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
        try:
            time.sleep(delay)
            victim = jobs.workers(p.pid).get(rank)  # none: not started yet, or over already
            killed = victim is not None and jobs.kill(victim)
            code = p.wait(timeout=300)
        finally:
            if p.poll() is None:
                p.kill()
                p.wait()
    assert code == 0, (folder / "stderr").read_text()
    epochs, resumes = jobs.read_metrics(metrics)
    return epochs[-1]["param_crc32c"], len(resumes), killed, time.monotonic() - started


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=50, help="runs in which a worker was really killed")
    p.add_argument("--limit", type=int, default=6400)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--data", help="a folder with other data than the full ones")
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--seed", type=int, default=None, help="of the moments and victims; printed")
    a = p.parse_args()
    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 31)
    draw = random.Random(seed)
    options = ["--limit", a.limit, "--epochs", a.epochs, "--seed", 0, *(["--data", a.data] if a.data else [])]
    kills = resumes = 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        want, duration = undisturbed(folder, options, a.workers)
    print(f"seed {seed}; undisturbed: parameters {want}, {duration:.2f} s", flush=True)
    i = 0
    while kills < a.rounds:
        i += 1
        delay, rank = draw.uniform(0, duration), draw.randrange(a.workers)
        with tempfile.TemporaryDirectory() as folder:
            crc, n_resumes, killed, seconds = one_round(folder, options, a.workers, delay, rank)
        if crc != want:
            print(f"round {i}: rank {rank} killed after {delay:.3f} s: parameters {crc}, expected {want}")
            return 1
        kills += killed
        resumes += n_resumes
        worst = max(worst, seconds)
    print(f"{i} runs, {kills} of them with a worker killed, {resumes} resumes from a snapshot, all ended with {want}; "
          f"longest {worst:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
