"""An unmodified torchrun on three hosts (network namespaces) with its own rendezvous and with crun's: what each does when
a worker, an agent or a cable fails, when a node comes late or joins a job that could do without it, and what becomes of a
spare node (tests/soak plugin, plugin215).

The workers only write down that they run, so that what is measured is what the agents do. "never": not within LIMIT_S.

c10d has two columns, because a node that joins a running job is lost with its defaults: the agents that are there keep the
address and the port of the first round's store (TCPStore sharing), and the new node waits for these in its round's keys,
where rank 0 writes them no more. "own store" is c10d with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import torch

import jobs
import nodes as lib
from fabric import Fabric, missing

LIMIT_S = 40
PORT = 29400
WORKER = """
import os, sys, time
line = f"{time.monotonic()} {os.environ['RANK']}/{os.environ['WORLD_SIZE']}\\n"
with open(sys.argv[1], "a") as f:
    f.write(line)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


# Column: (backend of torchrun, environment).
COLUMNS = {"c10d": ("c10d", {}), "c10d, own store": ("c10d", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}), "crun": ("crun", {})}


class Job:
    def __init__(self, fabric, folder, site, column, nnodes):
        self.fabric, self.nnodes, self.site = fabric, nnodes, site
        self.backend, self.variables = COLUMNS[column]
        self.folder = pathlib.Path(folder)
        self.nodes = lib.Nodes(folder)
        self.lines, self.flag = self.folder / "lines", self.folder / "end"
        self.lines.touch()
        # c10d looks the host's own name up; crun does not.
        (self.folder / "etc").mkdir()
        (self.folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{fabric.address(host)} {fabric.hostname(host)}\n" for host in range(fabric.n_hosts)))
        (self.folder / "worker.py").write_text(WORKER)

    def __enter__(self):
        if self.backend == "crun":
            crund = jobs.build_folder() / "rendezvous" / "crund"
            self.daemon = self.nodes.start([*self.fabric.prefix(0), crund, "--listen", f"{self.fabric.address(0)}:{PORT}"])
            self.daemon.wait_for("listening")
        return self

    def __exit__(self, *_):
        self.flag.touch()
        for node in self.nodes:
            for pid in [node.pid, *jobs.descendants(node.pid)]:
                jobs.kill(pid, signal.SIGKILL)
        self.nodes.__exit__(None, None, None)

    def start(self, host):
        node = self.nodes.start(
            [*self.fabric.prefix_with_etc(host, self.folder / "etc"), sys.executable, "-m", "torch.distributed.run", f"--nnodes={self.nnodes}",
             "--max-restarts=3", f"--rdzv-backend={self.backend}", f"--rdzv-endpoint={self.fabric.address(0)}:{PORT}",
             "--rdzv-id=job", "--rdzv-conf=last_call_timeout=2", f"--local-addr={self.fabric.address(host)}",
             self.folder / "worker.py", self.lines, self.flag],
            env={**self.variables, "PYTHONPATH": f"{self.site}:{os.environ.get('PYTHONPATH', '')}", "CRUN_PROGRAMS": f"{self.site}/bin"})
        return node

    def begun(self, world, since):
        """When the last worker of a round of this size began, after that moment; None if there is no such round."""
        ranks = {}
        for line in self.lines.read_text().splitlines():
            at, _, rank = line.partition(" ")
            if float(at) > since and rank.endswith(f"/{world}"):
                ranks[rank] = float(at)
        return max(ranks.values()) if len(ranks) == world else None

    def wait(self, world, since, limit=LIMIT_S):
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.begun(world, since):
                return f"{self.begun(world, since) - since:.1f} s"
            time.sleep(0.05)
        return "never"


def kill_tree(node, with_agent):
    """torchrun leaves its workers behind when it is killed: they are killed with it, as when the machine ends."""
    pids = jobs.descendants(node.pid)
    for pid in [node.pid, *pids] if with_agent else pids[-1:]:
        jobs.kill(pid, signal.SIGKILL)


def worker_of(node):
    return next(pid for pid in jobs.descendants(node.pid)
                if b"worker.py" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and
                b"torch.distributed.run" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())


def running(job, hosts):
    since = time.monotonic()
    nodes = [job.start(host) for host in hosts]
    began = job.wait(len(hosts), since, 120)
    assert began != "never", job.nodes.texts()
    return nodes


def killed_worker(job):
    nodes = running(job, (0, 1, 2))
    pid, since = worker_of(nodes[2]), time.monotonic()
    jobs.kill(pid, signal.SIGKILL)
    return job.wait(3, since)


def killed_agent(job):
    nodes = running(job, (0, 1, 2))
    since = time.monotonic()
    kill_tree(nodes[2], True)
    return job.wait(2, since)


def link_down(job):
    running(job, (0, 1, 2))
    since = time.monotonic()
    job.fabric.link(2, "down")
    try:
        return job.wait(2, since)
    finally:
        job.fabric.link(2, "up")


def third_node(job):
    running(job, (0, 1))
    since = time.monotonic()
    job.start(2)
    return job.wait(3, since)


def spare_node(job):
    since = time.monotonic()
    nodes = [job.start(host) for host in (0, 1, 2)]
    assert job.wait(2, since, 120) != "never", job.nodes.texts()
    time.sleep(10)  # until the third has found out that it is not needed
    job.flag.touch()
    codes = sorted(node.wait(60) for node in nodes)
    errors = [line for node in nodes for line in node.text().splitlines() if "Error" in line]
    return f"exit codes {codes} {errors[-1][:60] if errors else ''}".strip()


FAULTS = {"killed worker": (killed_worker, "2:3"), "killed agent": (killed_agent, "2:3"), "link down": (link_down, "2:3"),
          "late node": (third_node, "2:3"), "scale up": (third_node, "1:3"), "spare node": (spare_node, "2:2")}


def install(folder):
    """The wheel of this build, for PYTHONPATH."""
    subprocess.run([sys.executable, jobs.ROOT / "packaging/build-wheel", "--build", jobs.build_folder(), "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    wheel, = pathlib.Path(folder).glob("*.whl")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", f"{folder}/site", wheel], check=True)
    return f"{folder}/site"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS], default=[])
    args = parser.parse_args()
    if missing():
        sys.exit(missing())
    print(f"torchrun {torch.__version__}\n{'':16}" + "".join(f"{column:28}" for column in COLUMNS))
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        site = install(folder)
        for name in args.faults or FAULTS:
            fault, nnodes = FAULTS[name]
            results = []
            for column in COLUMNS:
                with Fabric(3) as fabric, tempfile.TemporaryDirectory() as place, Job(fabric, place, site, column, nnodes) as job:
                    try:
                        results.append(fault(job))
                    except AssertionError as error:
                        results.append(f"failed: {str(error)[-200:]}")
            failed |= any(bad in results[-1] for bad in ("never", "failed", "[0, 0, 1]"))
            print(f"{name:16}" + "".join(f"{r:28}" for r in results), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
