"""Ranks of a PyTorch job as forks of one interpreter that has done their imports: a small crun for tests of crun_launch.checkpoint, with a
fake of crun's memory (fake_blocks). This file is also the program that forks."""

import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
JOB = ROOT / "tests/workers/memory_job.py"


class Ranks:
    """Keeps an interpreter until the end of the `with` block. job: a file with a function main(), which a rank calls."""

    def __init__(self, python=sys.executable, job=JOB):
        self.folder = tempfile.TemporaryDirectory(prefix="forked-ranks-")
        self.python, self.job, self.program, self.n_runs = python, str(job), None, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.folder.cleanup()

    def stop(self):
        if self.program:
            self.program.stdin.close()
            self.program.wait()
        self.program = None

    def start(self, fds):
        self.program = subprocess.Popen([self.python, __file__, self.job], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        pass_fds=fds, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/python:{ROOT}/tests/support/py"})

    def generation(self, fake, n, args, generation=0):
        """Exit codes of the n ranks, with the memory of a FakeCrun or none. When one rank fails, the others are killed."""
        self.n_runs += 1
        each = [{"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(n), "CRUN_GENERATION": str(generation),
                 "JOB_STORE": f"{self.folder.name}/store-{self.n_runs}", **(fake.environment(r) if fake else {})} for r in range(n)]
        self.program.stdin.write(json.dumps([each, list(map(str, args)), 100]) + "\n")
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())


def _fork(environment, job, args):
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.update(environment)
            os.dup2(2, 1)
            job["main"](*[a for a in args if "=" not in a], **dict(a.split("=", 1) for a in args if "=" in a))
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
        os._exit(code)
    return pid


def _wait_for_all(pids, seconds):
    """Exit codes; negative: a signal."""
    codes, left = {}, set(pids)
    signal.signal(signal.SIGALRM, lambda *_: [os.kill(p, signal.SIGKILL) for p in left])
    signal.alarm(seconds)
    while left:
        pid, status = os.wait()
        left.discard(pid)
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid] and len(left) + 1 == len(pids):     # the first failure
            for other in left:
                os.kill(other, signal.SIGKILL)
        elif codes[pid] and not any(codes[p] for p in codes if p != pid):
            for other in left:
                os.kill(other, signal.SIGKILL)
    signal.alarm(0)
    return [codes[p] for p in pids]


def _serve(path):
    job = runpy.run_path(path, run_name="job")
    importlib.import_module("torch.distributed.fsdp")
    importlib.import_module("torch._dynamo")     # each rank would import that at its first collective
    for line in sys.stdin:
        each, args, seconds = json.loads(line)
        pids = [_fork(e, job, args) for e in each]
        print(json.dumps(_wait_for_all(pids, seconds)), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
