"""Jobs of `train` whose ranks are SIGKILLed at random moments, one after the other, while the others go on.

Measured, for each kill: from just before the signal is sent to when the primary rank has committed the next step
(both on the monotonic clock). Checked: the job ends by itself with the parameters of the undisturbed run, bit for
bit; no step that was committed by all ranks before a kill is taken back (crun's memory files say which those were,
so this also looks at what is in them); nothing is left of the job.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import jobs

NO_NUMBER = (1 << 64) - 1
WORKERS = 4
# Long enough for a good part of the kills.
OPTIONS = {"toy": ["--epochs", 1000], "classifier": ["--epochs", 100, "--log-every", 0],
           "mnist": ["--epochs", 1]}
# From a kill to the next committed step: beside one step of the program itself.
LIMIT_MS = {"toy": 50, "classifier": 50, "mnist": 100}


def monotonic():
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def committed(crun_pid, n_workers=WORKERS):
    """The newest state that all ranks have, by number (steps and epochs done); None: some rank has none."""
    newest = []
    for fd in os.listdir(f"/proc/{crun_pid}/fd"):
        path = f"/proc/{crun_pid}/fd/{fd}"
        try:
            if not os.readlink(path).startswith("/memfd:crun-state"):
                continue
            with open(path, "rb") as f:
                head = f.read(40)
        except OSError:
            continue
        numbers = [n for n in struct.unpack_from("<QQ", head, 24) if n != NO_NUMBER] if len(head) == 40 else []
        newest.append(max(numbers, default=None))
    return min(newest) if len(newest) == n_workers and None not in newest else None


class Metrics:
    """What the primary rank has written so far; whole lines only."""

    def __init__(self, path):
        self.path, self.at, self.lines = path, 0, []

    def read(self):
        if not self.path.exists():
            return []
        with open(self.path) as f:
            f.seek(self.at)
            text = f.read()
        whole = text[:text.rfind("\n") + 1]
        self.at += len(whole.encode())
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        return new


def undisturbed(program, options, crun_args):
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder) / "calm"
        started = monotonic()
        p = jobs.run(jobs.train_job(WORKERS, *options, "--metrics", metrics, program=program, crun_args=crun_args))
        assert p.returncode == 0, p.stderr
        epochs, _ = jobs.read_metrics(metrics)
        return epochs[-1]["param_crc32c"], 1000 * (monotonic() - started) / epochs[-1]["step"]


class Job:
    def __init__(self, folder, program, options, policy, restarts, more=(), env=None):
        self.metrics = Metrics(folder / "metrics")
        self.errors = folder / "stderr"
        with open(self.errors, "w") as err:
            self.process = subprocess.Popen(
                jobs.train_job(WORKERS, *options, "--metrics", self.metrics.path, program=program,
                               crun_args=[f"--restart-policy={policy}", f"--max-restarts={restarts}", *more]),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
                env={**os.environ, **(env or {})})
        self.running = True

    def over(self):
        """Everything that is written has been read when it says so."""
        self.running = self.running and self.process.poll() is None
        return not self.running

    def wait_ready(self):
        """All ranks have committed something; False: the job is over."""
        while not self.over():
            if committed(self.process.pid) and len(jobs.workers(self.process.pid)) == WORKERS:
                return True
            time.sleep(0.002)
        return False

    def wait_commit(self, timeout=120):
        """(resumed line, recommitted line) of what comes next; None: the job is over."""
        deadline, resumed = time.monotonic() + timeout, None
        while time.monotonic() < deadline:
            over = self.over()
            for line in self.metrics.read():
                if "resumed" in line:
                    resumed = line
                if "recommitted" in line:
                    return resumed, line
            if over:
                return None
            time.sleep(0.002)
        raise AssertionError("no step was committed after a kill\n" + self.errors.read_text())

    def finish(self):
        code = self.process.wait(timeout=300)
        self.metrics.read()
        assert code == 0, self.errors.read_text()
        return [m for m in self.metrics.lines if "param_crc32c" in m and "epoch" in m][-1]["param_crc32c"]

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def kill_ranks(job, draw, at_once, policy):
    """One kill. (milliseconds, from where) or None when the job ended first."""
    number = committed(job.process.pid)
    victims = draw.sample(range(WORKERS), at_once)
    pids = jobs.workers(job.process.pid)
    if number is None or any(rank not in pids for rank in victims):
        return None
    at = monotonic()
    for rank in victims:
        jobs.kill(pids[rank])
    seen = job.wait_commit()
    if seen is None:
        return None
    resumed, line = seen
    assert resumed, job.errors.read_text()
    back_at = resumed["step"] + resumed["epoch"] - 1
    assert back_at >= number, f"state {number} had been committed by all ranks, and {back_at} is what went on"
    # An epoch that was closed in between is no step.
    assert line["recommitted"] == resumed["step"] + 1, (resumed, line)
    return 1000 * (line["monotonic"] - at), resumed["from"]


def rounds(program, kills, draw, policy="replace", at_once=1, options=None, pause_ms=30, report=print):
    """Returns the milliseconds of each kill and the milliseconds of an undisturbed step."""
    options = options or OPTIONS[program]
    want, step_ms = undisturbed(program, options, [])
    took, sources, runs = [], {}, 0
    while len(took) < kills:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(pathlib.Path(folder), program, options, policy, 2 * kills + 10)
            runs += 1
            try:
                going = job.wait_ready()
                while going and len(took) < kills:
                    time.sleep(draw.uniform(0, pause_ms) / 1000)
                    result = kill_ranks(job, draw, at_once, policy)
                    going = result is not None and not job.over()
                    if result:
                        took.append(result[0])
                        sources[result[1]] = sources.get(result[1], 0) + 1
                crc = job.finish()
            finally:
                job.end()
        assert crc == want, f"ended with {crc}, undisturbed with {want}"
        assert runs < kills + 20, "the jobs are over before anybody can be killed"
    took.sort()
    report(f"{program}, policy {policy}, {at_once} of {WORKERS} ranks killed, {len(took)} times in {runs} runs: "
           f"next committed step after median {statistics.median(took):.1f} ms, "
           f"p99 {took[min(len(took) - 1, int(len(took) * 0.99))]:.1f} ms, longest {took[-1]:.1f} ms; "
           f"a step takes {step_ms:.2f} ms; state from {sources}; parameters {want} as undisturbed")
    return took, step_ms


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--kills", type=int, default=50)
    p.add_argument("--programs", default="toy,classifier,mnist")
    p.add_argument("--policies", default="replace,all")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    a = p.parse_args()
    draw = random.Random(a.seed)
    print(f"seed {a.seed}", flush=True)
    late = []
    for policy in a.policies.split(","):
        for program in a.programs.split(","):
            took, step_ms = rounds(program, a.kills, draw, policy)
            limit = LIMIT_MS[program] + (step_ms if program == "mnist" else 0)
            if policy == "replace" and statistics.median(took) > limit:
                late.append(f"{program}: median {statistics.median(took):.1f} ms, the aim is {limit:.1f} ms")
    if "replace" in a.policies:
        rounds("toy", max(a.kills // 2, 1), draw, at_once=2)
    for line in late:
        print("LATE", line)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
