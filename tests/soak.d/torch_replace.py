"""PyTorch DDP over gloo with crun_launch.worker: ranks are killed at random steps, rank 0 among them, and replaced in place.

Measured, for each kill: from just before SIGKILL to when all ranks have done the next step. Checked: the other processes are the same at the end,
each step is done once, each sample of each epoch is used once, and the parameters are those of the undisturbed run, bit for bit. A survivor
that gloo keeps in a collective ends itself with a line that names gloo, and is replaced, too (crun_launch/worker.py): it is counted.
Variants: with --warm, where new processes are forked and import nothing, and without it.
--torchrun N: such kills under torchrun of the same PyTorch, whose workers all begin anew.
"""

import argparse
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import jobs
import torch_in_place as lib

RANKS = 4
TORCHRUN_S = 60  # until all ranks of torchrun's job have done a step after a kill


def command(python, folder, options, n_ranks, launcher_options=(), torchrun=False):
    launcher = [python, "-m", "torch.distributed.run"] if torchrun else [jobs.crun()]
    # On a busy machine an import takes longer than the default of 30 s.
    policy = [] if torchrun else ["--restart-policy=replace", "--replace-timeout=300"]
    return [*launcher, "--standalone", f"--nproc-per-node={n_ranks}", "--max-restarts=1000", *policy, *launcher_options,
            str(lib.SCRIPT), str(folder), *map(str, options), *(["--plain"] if torchrun else [])]


class Job:
    def __init__(self, python, options, n_ranks=RANKS, launcher_options=(), torchrun=False):
        self.folder = tempfile.TemporaryDirectory()
        self.logs = lib.Logs(self.folder.name)
        self.n_ranks = n_ranks
        self.errors = pathlib.Path(self.folder.name) / "errors"
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                command(python, self.folder.name, options, n_ranks, launcher_options, torchrun), stdin=subprocess.DEVNULL,
                stdout=errors, stderr=errors, env=lib.environment(python))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            left = jobs.descendants(self.process.pid)
            self.process.kill()
            for pid in left:
                jobs.kill(pid)
        self.process.wait()
        self.folder.cleanup()

    def wait(self, what, timeout=200):
        def look():
            assert self.process.poll() is None or what(self.logs.read()), self.errors.read_text()[-3000:]
            return what(self.logs.read())
        try:
            return jobs.wait_for(look, timeout, 0.003)
        except AssertionError as e:
            for pid in jobs.workers(self.process.pid).values():
                jobs.kill(pid, signal.SIGUSR2)
            time.sleep(2)
            raise AssertionError(f"{e}; workers {jobs.workers(self.process.pid)}, last lines "
                                 f"{[(key, lines[-1]) for key, lines in self.logs.lines.items() if lines]}\n"
                                 f"{self.errors.read_text()[-8000:]}") from None

    def finish(self):
        code = self.process.wait(timeout=300)
        assert code == 0, self.errors.read_text()[-3000:]
        ends = self.logs.read().ends()
        assert len({end[2] for end in ends}) == 1, ends
        return ends[0]

    def pids(self):
        """rank -> process number of the newest process that has done a step."""
        newest = {}
        for rank, pid, _, _, _, at in self.logs.done():
            newest[rank] = max(newest.get(rank, (0, 0)), (at, pid))
        return {rank: pid for rank, (_, pid) in newest.items()}

    def kill(self, step, rank):
        """At that step. Milliseconds until all have done the next."""
        self.wait(lambda logs: logs.steps() >= step)
        generation = max(g for _, _, _, g, _, _ in self.logs.done())
        at = time.monotonic()
        assert jobs.kill(self.pids()[rank], signal.SIGKILL)
        _, seen = self.wait(lambda logs: logs.first_step_after(generation, self.n_ranks))
        return 1000 * (seen - at)


def undisturbed(python, options, n_ranks=RANKS, launcher_options=()):
    with Job(python, options, n_ranks, launcher_options) as job:
        end = job.finish()
        job.logs.check_steps()
        return end


def one_job(python, options, n_samples, kills, want, draw, n_ranks=RANKS, launcher_options=()):
    """The milliseconds of each kill, and how many survivors gloo kept. kills: their number, or a list of ranks."""
    ranks = kills if isinstance(kills, list) else [draw.randrange(n_ranks) for _ in range(kills)]
    steps = sorted(draw.sample(range(3, want[1] - 10), len(ranks)))
    took = []
    with Job(python, options, n_ranks, launcher_options) as job:
        for step, rank in zip(steps, ranks):
            took.append(job.kill(step, rank))
        end = job.finish()
        kept = lib.kept_by_gloo(job.errors.read_text())
        assert len(job.logs.lines) == n_ranks + len(ranks) + kept, (
            f"other processes than the {len(ranks)} were replaced: {sorted(job.logs.lines)}\n{job.errors.read_text()[-6000:]}")
        assert job.logs.check_steps() == want[1]
        job.logs.check_samples(n_samples)
        assert end[2] == want[2], f"the parameters are {end}, undisturbed {want}"
    return took, kept


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def torchrun_rounds(python, options, kills, draw):
    """The milliseconds of each kill after which all ranks did a step, and how many jobs did not go on within a minute: a rank of torchrun's
    reads the address of one of the attempt before in the store that both share."""
    took, n_hung = [], 0
    while len(took) + n_hung < kills:
        with Job(python, [*options, "--epochs", 1000], torchrun=True) as job:
            try:
                for _ in range(min(5, kills - len(took) - n_hung)):
                    job.wait(lambda logs: logs.steps() >= 5 and len(job.pids()) == RANKS)
                    at = time.monotonic()
                    jobs.kill(job.pids()[draw.randrange(RANKS)])
                    job.wait(lambda logs: len({r for r, _, _, _, _, t in logs.done() if t > at + 0.5}) == RANKS, TORCHRUN_S)
                    took.append(1000 * (max(min(t for r, _, _, _, _, t in job.logs.done() if t > at + 0.5 and r == rank)
                                            for rank in range(RANKS)) - at))
            except AssertionError:
                n_hung += 1
    return took, n_hung


def import_ms(python):
    """One interpreter that imports what a new process imports."""
    begin = time.monotonic()
    subprocess.run([python, "-c", "import torch, torch.distributed, torch._dynamo"], check=True)
    return 1000 * (time.monotonic() - begin)


def variant(python, options, a, launcher_options, draw):
    """All kills with these options of crun. The undisturbed job also makes the list of modules of --warm."""
    name, took, n_kept = " ".join(["crun", *launcher_options]), [], 0
    want = undisturbed(python, options, launcher_options=launcher_options)
    while len(took) < a.kills:
        more, kept = one_job(python, options, a.samples, min(a.kills_per_job, a.kills - len(took)), want, draw,
                             launcher_options=launcher_options)
        took += more
        n_kept += kept
        print(f"{name}, {len(took)} kills: fault to next step median {statistics.median(took):.0f} ms, p99 {percentile(took, 0.99):.0f} ms, "
              f"longest {max(took):.0f} ms; 0 steps lost, {n_kept} survivors kept by gloo, parameters {want[2]} as undisturbed; load {os.getloadavg()[0]:.1f}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("kills", type=int, nargs="?", default=200, help="of each variant")
    p.add_argument("--kills-per-job", type=int, default=50)
    p.add_argument("--samples", type=int, default=8000)
    p.add_argument("--torchrun", type=int, default=5)
    p.add_argument("--variant", choices=("cold", "warm"), help="only this one")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    a = p.parse_args()
    python, why = lib.python()
    if why:
        sys.exit(why)
    draw = random.Random(a.seed)
    options = ["--samples", a.samples, "--epochs", 3]
    imports = sorted(import_ms(python) for _ in range(3))
    print(f"seed {a.seed}; one interpreter's import {imports[1]:.0f} ms; load {os.getloadavg()[0]:.1f}", flush=True)
    for name, launcher_options in ("warm", ["--warm"]), ("cold", []):
        if a.variant in (None, name):
            variant(python, options, a, launcher_options, draw)
    if a.torchrun:
        theirs, n_hung = torchrun_rounds(python, ["--samples", 8000], a.torchrun, draw)
        times = f"median {statistics.median(theirs):.0f} ms, longest {max(theirs):.0f} ms" if theirs else "never"
        print(f"torchrun, {len(theirs) + n_hung} kills: fault to next step of all ranks {times}; {n_hung} jobs did not go on within "
              f"{TORCHRUN_S} s; all steps of the epochs since the last snapshot are lost")


if __name__ == "__main__":
    main()
