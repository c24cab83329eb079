"""Kill and resume, for every program with every optimizer: the parameters at the end are those of an undisturbed
run, bit for bit. The worker kills itself (--fault) in the middle of a step drawn at random; with all options
that carry state or change the arithmetic on."""

import argparse
import pathlib
import random
import sys
import tempfile
import time

import jobs

EPOCHS = 3
STATEFUL = ("--lr-schedule", "step:1:0.6", "--clip-norm", "0.4", "--accumulate", "2", "--precision", "bf16")
PROGRAMS = {
    "toy": ("--limit", "300"),
    "classifier": ("--limit", "250", "--log-every", "0"),
    "mnist": ("--limit", "320", "--batch-size", "16"),
}
OPTIMIZERS = {"sgd": "0.05", "adamw": "0.001", "adadelta": "1"}


def run(folder, program, n_workers, options, crun_args=()):
    metrics = folder / "metrics"
    p = jobs.run(jobs.train_job(n_workers, *options, "--metrics", metrics, program=program, crun_args=crun_args))
    assert p.returncode == 0, p.stderr
    return jobs.read_metrics(metrics)


def compare(want, epochs):
    """An epoch whose line was written again after a kill has the same line."""
    last = {e["epoch"]: e for e in epochs}
    fields = ("step", "loss", "loss_all", "test_accuracy", "param_crc32c")
    return [[e[f] for f in fields] for e in want] == [[last[n][f] for f in fields] for n in sorted(last)]


def one_kill(program, n_workers, options, want, draw):
    """Returns what happened, in words, and whether it was right."""
    n_steps = want[-1]["step"]
    rank, step, kind = draw.randrange(n_workers), draw.randint(1, n_steps), draw.choice(("kill", "exit", "nan"))
    every = draw.choice((0, 1, 3))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        epochs, _ = run(folder, program, n_workers,
                        [*options, "--snapshot-dir", folder / "s", "--snapshot-every", every,
                         "--fault", f"rank={rank},step={step},kind={kind}"], ["--max-restarts=1"])
    said = f"{program} {' '.join(options)}: {n_workers} workers, rank {rank} {kind} at step {step} of {n_steps}"
    return said, compare(want, epochs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=20, help="kills of each program with each optimizer")
    p.add_argument("--data", help="of mnist")
    p.add_argument("--seed", type=int, default=None, help="of the draws; printed")
    a = p.parse_args()
    seed = a.seed if a.seed is not None else random.SystemRandom().randrange(1 << 31)
    draw = random.Random(seed)
    started, kills = time.monotonic(), 0
    print(f"seed {seed}", flush=True)
    for program, small in PROGRAMS.items():
        if program == "mnist" and a.data:
            small = (*small, "--data", a.data)
        for i, (optimizer, lr) in enumerate(OPTIMIZERS.items()):
            n_workers = 1 + i % 3
            for more in ((), STATEFUL):
                options = [*small, "--epochs", str(EPOCHS), "--optimizer", optimizer, "--lr", lr, *more]
                with tempfile.TemporaryDirectory() as folder:
                    want, _ = run(pathlib.Path(folder), program, n_workers, options)
                for _ in range((a.rounds + (more == ())) // 2):
                    said, right = one_kill(program, n_workers, options, want, draw)
                    kills += 1
                    if not right:
                        print(f"{said}: other losses or parameters than undisturbed")
                        return 1
            print(f"{program} with {optimizer}: as undisturbed, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{kills} kills, {len(PROGRAMS)} programs x {len(OPTIMIZERS)} optimizers: all ended as undisturbed; "
          f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
