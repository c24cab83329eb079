#!/usr/bin/env python3
"""Jobs of crun and crund of two commits: an older crun with this crund, and the reverse; with a directory and with etcd.

    other_release.py [COMMIT [ROUNDS]]

Builds crun and crund of the commit (by default the one before the last change of what is saved and sent). In each job a worker fails,
then the crund that decides is killed: with a directory it is started again, with etcd the crund of the other commit takes its
place. The job has to restart its workers by the failure alone, and to end well."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import jobs
import nodes as lib
from crund import Crund
from etcd_crunds import WORKER, Member
from jobs import wait_until

COMMIT = "1b21ba2"


def build(commit, folder):
    """crun and crund of that commit."""
    source, made = folder / "source", folder / "build"
    subprocess.run(["git", "clone", "-q", "--shared", "--no-checkout", jobs.ROOT, source], check=True)
    subprocess.run(["git", "-C", source, "checkout", "-q", "--detach", commit], check=True)
    subprocess.run(["meson", "setup", made, source, "-Dcuda=disabled"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", made, "launcher/crun", "rendezvous/crund"], check=True, stdout=subprocess.DEVNULL)
    return made


class Job:
    """Two nodes; WORKER says which files end it."""

    def __init__(self, folder, build, endpoint):
        self.folder = folder
        (folder / "worker.py").write_text(WORKER)
        self.nodes = [lib.Node([build / "launcher" / "crun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
                                f"--rdzv-endpoint={endpoint}", "--rdzv-id=j", "--max-restarts=3", "--security=open",
                                "--rdzv-conf=node_timeout_ms=5000", folder / "worker.py", folder], folder / f"node{i}.log")
                      for i in range(2)]

    def starts(self):
        path = self.folder / "events"
        return path.read_text().count("start ") if path.exists() else 0

    def texts(self):
        return "".join(n.text() for n in self.nodes)

    def wait_starts(self, n):
        assert wait_until(lambda: self.starts() == n, 60), (self.starts(), self.texts())

    def fail(self, restart):
        (self.folder / f"fail.{restart}").touch()
        self.wait_starts(2 * (restart + 2))

    def finish(self):
        (self.folder / "stop").touch()
        codes = [n.wait(60) for n in self.nodes]
        assert codes == [0, 0], (codes, self.texts())
        assert self.starts() == 6, self.texts()

    def kill(self):
        for n in self.nodes:
            n.signal(signal.SIGKILL)
            n.wait()


def with_directory(folder, crun, crund):
    port = lib.free_port()
    start = lambda: Crund(crund, "--state", str(folder / "state"), listen=(f"127.0.0.1:{port}",))
    with start() as daemon:
        job = Job(folder, crun, f"127.0.0.1:{port}")
        try:
            job.wait_starts(2)
            job.fail(0)
            daemon.process.kill()
            daemon.process.wait()
            with start():
                job.fail(1)
                job.finish()
        finally:
            job.kill()


def with_etcd(folder, crun, crund, other):
    ports = [lib.free_port() for _ in range(2)]
    member = Member(folder, "m", lib.free_port(), lib.free_port(), None)
    member.start()
    try:
        assert wait_until(member.leads, 60)
        start = lambda build, port: Crund(build, "--state", f"etcd://127.0.0.1:{member.client}/x", listen=(f"127.0.0.1:{port}",))
        with start(crund, ports[0]) as first:
            assert wait_until(lambda: "leads, with term" in first.log(), 60), first.log()
            with start(other, ports[1]) as second:
                job = Job(folder, crun, ",".join(f"127.0.0.1:{port}" for port in ports))
                try:
                    job.wait_starts(2)
                    job.fail(0)
                    first.process.kill()
                    first.process.wait()
                    assert wait_until(lambda: "leads, with term" in second.log(), 60), second.log()
                    job.fail(1)
                    job.finish()
                finally:
                    job.kill()
    finally:
        member.kill()
        member.out.close()


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else COMMIT
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    this = jobs.build_folder()
    with tempfile.TemporaryDirectory() as folder:
        older = build(commit, pathlib.Path(folder))
        for crun, crund, what in ((older, this, "older crun, this crund"), (this, older, "this crun, older crund")):
            for i in range(rounds):
                for state in "directory", "etcd":
                    at = pathlib.Path(folder) / "job"
                    at.mkdir()
                    if state == "directory":
                        with_directory(at, crun, crund)
                    else:
                        with_etcd(at, crun, crund, older if crund == this else this)
                    shutil.rmtree(at)
            print(f"{what} (older: {commit}): {rounds} jobs with a directory, {rounds} with etcd, all well", flush=True)


if __name__ == "__main__":
    main()
