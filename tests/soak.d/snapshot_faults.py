"""Every system call of `train` on its folder of snapshots fails once, or hangs (tests/fakes/snapshot_faults.c), each in a run of its own.

Three kinds of run: a new one, one that resumes, and one whose rank 1 is killed and replaced. A run without faults lists the
calls of rank 0. Whatever fails then:

 - exit code 0 only with the last step on disk; else 1 and a sentence of train;
 - every file with the name of a snapshot is whole, and the newest is not older than the newest before the run;
 - a run without faults resumes from that newest file, without a warning;
 - a call of the thread that saves hangs for ever: the ranks train to the end, and on SIGTERM the job ends in time.
"""

import argparse
import concurrent.futures
import errno
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import jobs

ERRORS = (errno.EIO, errno.ENOSPC)
STEPS_OF_EPOCH, FIRST, LAST = 100, 2, 4  # of toy; epochs of the run before, and of the run with the fault
GRACE_S, HANG_MS, FOR_EVER_MS = 2, 400, 10**8
CALM = {k: v for k, v in os.environ.items() if k not in ("RANK", "CRUN_SHUTDOWN_TIMEOUT")}


def options(folder, epochs):
    return ["toy", "--epochs", str(epochs), "--keep", "3", "--snapshot-dir", str(folder)]


def job(folder, epochs, kind):
    if kind == "rejoin":  # the death comes behind an epoch's end, whose snapshot is saved again by the ranks that are left
        return jobs.train_job(2, *options(folder, epochs)[1:], "--fault", "rank=1,step=51,kind=kill-early", program="toy",
                              crun_args=["--max-restarts=2", "--restart-policy=replace", f"--shutdown-timeout={GRACE_S}"])
    return [jobs.train(), *options(folder, epochs)]


def last_step(kind):
    return LAST * (STEPS_OF_EPOCH // (2 if kind == "rejoin" else 1))


def steps(folder):
    return sorted(int(path.name[5:17]) for path in folder.glob("snap-*"))


class Case:
    """A folder with what was there before, and one run in it."""

    def __init__(self, tmp, kind, fault=""):
        self.kind, self.fault = kind, fault
        self.home = pathlib.Path(tempfile.mkdtemp(dir=tmp))
        self.folder, self.list = self.home / "snapshots", self.home / "list"
        if kind == "resume":
            assert subprocess.run([jobs.train(), *options(self.folder, FIRST)], env=CALM, stdout=subprocess.DEVNULL).returncode == 0
        self.before = steps(self.folder)

    def start(self):
        faults = jobs.preload("snapshot_faults", SNAPSHOT_FAULTS=self.folder, SNAPSHOT_FAULT=self.fault, SNAPSHOT_FAULTS_LIST=self.list)
        return subprocess.Popen(job(self.folder, LAST, self.kind), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True,
                                env={**CALM, **faults, "CRUN_SHUTDOWN_TIMEOUT": str(GRACE_S), "CRW_TIMEOUT_MS": "8000"})

    def calls(self):
        return [line.split() for line in self.list.read_text().splitlines()]

    def judge(self, code, out, said):
        """What is wrong, or None."""
        there, last = steps(self.folder), last_step(self.kind)
        if code == 0 and (not there or there[-1] != last):
            return f"exit code 0 with steps {there} on disk"
        if code != 0 and not re.search("^train: ", said, re.M):
            return f"exit code {code} without a sentence"
        if self.before and (not there or there[-1] < self.before[-1]):
            return f"steps {there} after {self.before}"
        p = subprocess.run([jobs.train(), *options(self.folder, LAST + 1)], env=CALM, capture_output=True, text=True, timeout=60)
        if p.returncode or p.stderr or (there and f"resumed from the snapshot of step {there[-1]} " not in p.stdout):
            return f"afterwards, with steps {there}: {p.returncode} {p.stdout}{p.stderr}"
        return None


def list_calls(tmp, kind):
    case = Case(tmp, kind)
    p = case.start()
    out, said = p.communicate(timeout=60)
    wrong = case.judge(p.returncode, out, said)
    assert p.returncode == 0 and not wrong, f"{kind} without a fault: {wrong} {said}"
    return [tuple(call[:3]) for call in case.calls()]


def fail_once(tmp, kind, call, n, error):
    case = Case(tmp, kind, f"{call} {n} {error}")
    p = case.start()
    try:
        out, said = p.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        p.kill()
        return "it has not ended", ""
    return case.judge(p.returncode, out, said), said


def hang(tmp, kind, call, n, thread):
    """The ranks wait for what rank 0 needs before it can begin; for what its thread saves they do not."""
    if thread == "main":
        return fail_once(tmp, kind, call, n, -HANG_MS)
    case = Case(tmp, kind, f"{call} {n} -{FOR_EVER_MS}")
    p = case.start()
    lines = []
    for line in p.stdout:
        lines.append(line)
        if line.startswith(f"epoch {LAST}/"):
            break
    trained = time.monotonic()
    p.send_signal(signal.SIGTERM)
    try:
        rest, said = p.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        p.kill()
        return "it has not ended", ""
    out = "".join(lines) + rest
    if f"epoch {LAST}/" not in out:
        return "a rank was stopped: " + out, said
    if time.monotonic() - trained > 4 * GRACE_S:
        return f"it ended {time.monotonic() - trained:.1f} s after SIGTERM", said
    return case.judge(p.returncode, out, said), said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="so many runs, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--at-once", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        plan = []
        for kind in ("new", "resume", "rejoin"):
            calls = list_calls(tmp, kind)
            print(f"{kind}: {len(calls)} calls of rank 0", flush=True)
            plan += [(fail_once, kind, call, n, error) for call, n, _ in calls for error in ERRORS]
            plan += [(hang, kind, call, n, thread) for call, n, thread in calls]
        if args.sample:
            print(f"seed {args.seed}")
            plan = random.Random(args.seed).sample(plan, args.sample)
        n_wrong = 0
        with concurrent.futures.ThreadPoolExecutor(args.at_once) as pool:
            running = {pool.submit(what, tmp, *rest): (what.__name__, *rest) for what, *rest in plan}
            for future in concurrent.futures.as_completed(running):
                wrong, said = future.result()
                if wrong:
                    n_wrong += 1
                    print(*running[future], wrong, said, flush=True)
        print(f"{len(plan)} runs, {sum(what is hang for what, *_ in plan)} with a call that hangs: {n_wrong} wrong")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
