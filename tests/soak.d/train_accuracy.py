"""`train mnist` and PyTorch DDP on the same recipe, one after the other: accuracy, loss and images/s."""

import argparse
import json
import pathlib
import sys
import tempfile
import time

import jobs


def measure(args, metrics):
    started = time.monotonic()
    p = jobs.run(args, timeout=1800)
    seconds = time.monotonic() - started
    if p.returncode != 0:
        raise SystemExit(p.stderr)
    lines = [m for m in map(json.loads, pathlib.Path(metrics).read_text().splitlines()) if "loss" in m]
    return lines, seconds


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--limit", type=int, default=60000)
    p.add_argument("--workers", type=int, default=2)
    a = p.parse_args()
    options = ["--epochs", str(a.epochs), "--limit", str(a.limit), "--seed", "0"]
    with tempfile.TemporaryDirectory() as folder:
        ours, our_s = measure(jobs.train_job(a.workers, *options, "--metrics", f"{folder}/ours"), f"{folder}/ours")
        theirs, their_s = measure(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={a.workers}",
             str(jobs.ROOT / "tests/workers/torch_mnist.py"), *options, "--metrics", f"{folder}/theirs"],
            f"{folder}/theirs")
    print("epoch       loss: train  PyTorch      test accuracy: train  PyTorch      images/s: train  PyTorch")
    for o, t in zip(ours, theirs):
        print(f"{o['epoch']:5}  {o['loss']:17.5f}  {t['loss']:7.5f}  {100 * o['test_accuracy']:25.2f} %  "
              f"{100 * t['test_accuracy']:5.2f} %  {o['images_per_s']:17.0f}  {t['images_per_s']:7.0f}")
    print(f"whole run with start-up: train {our_s:.1f} s, PyTorch {their_s:.1f} s, ratio {their_s / our_s:.2f}")
    difference = 100 * (ours[-1]["test_accuracy"] - theirs[-1]["test_accuracy"])
    print(f"test accuracy differs by {difference:+.2f} points (bound 0.3)")
    return abs(difference) > 0.3


if __name__ == "__main__":
    sys.exit(main())
