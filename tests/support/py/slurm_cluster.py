#!/usr/bin/env python3
"""A job under a real Slurm: one controller and two node daemons on this machine, in namespaces of their own.

    slurm_cluster.py

Needs root and Debian's slurmctld, slurmd, slurm-client and munge. The network and mount namespaces are this
script's: ports are fixed in there, n1 and n2 are names for 127.0.0.1, and nothing is left outside. Tried are a step over
both nodes without any endpoint, the signal before a time limit, and a requeue that resumes."""

import contextlib
import os
import pathlib
import pwd
import re
import socket
import subprocess
import sys
import tempfile
import time

import jobs

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=20
SlurmdTimeout=60
JobRequeue=1
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=1 State=UNKNOWN
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=10 State=UP
"""


def say(*words):
    print(*words, flush=True)


def enter_namespaces():
    if os.environ.get("SLURM_CLUSTER_INSIDE") != "1":
        os.environ["SLURM_CLUSTER_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", sys.executable, *sys.argv])
    # Slurm looks names up for the families that the machine has addresses of, and loopback does not count.
    for words in ("link set lo up", "link add name eth0 type bridge", "addr add 10.78.0.1/24 dev eth0", "link set eth0 up"):
        subprocess.run(["ip", *words.split()], check=True)


class Cluster:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.daemons = []
        self.env = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def start(self, *command):
        log = open(self.folder / (pathlib.Path(command[0]).name + f".{len(self.daemons)}.out"), "wb")
        self.daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env))

    def run(self, *command, timeout=120):
        return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=timeout, env=self.env, cwd=self.folder)

    def logs(self):
        return "".join(f"--- {f.name}\n{f.read_text(errors='replace')[-1500:]}\n" for f in self.folder.glob("*.log"))

    def wait_for(self, what, condition, timeout=60):
        try:
            return jobs.wait_for(condition, timeout, 0.1)
        except AssertionError:
            sys.exit(f"slurm_cluster.py: waited too long for {what}\n{self.logs()}")

    def __enter__(self):
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost n1 n2 {socket.gethostname()}\n")
        hosts.chmod(0o644)
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
        (self.folder / "slurm.conf").write_text(CONF.format(host=socket.gethostname().split(".")[0], folder=self.folder))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.folder / "state").mkdir()
        self.start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                   f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed",
                   f"--log-file={self.folder}/munged.log")
        self.wait_for("munged", lambda: (self.folder / "munge.socket").exists())
        self.start("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self.start("slurmd", "-D", "-N", node)
        self.wait_for("two idle nodes", lambda: self.run("sinfo", "-h", "-o", "%D %t").stdout.strip() == "2 idle")
        return self

    def __exit__(self, *exc):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
        subprocess.run(["umount", "/etc/hosts"], check=True)


def require(condition, *words):
    if not condition:
        sys.exit("slurm_cluster.py: " + " ".join(map(str, words)))


def learned(text):
    found = re.findall(r"parameters ([0-9a-f]{8})", text)
    require(found, "no parameters in:", text)
    return found[-1]


CRUN = (jobs.crun(), "--nnodes=2", "--nproc-per-node=1", jobs.train())


def try_step(cluster):
    """Nothing but --nnodes is said."""
    args = ("classifier", "--epochs", "2")
    p = cluster.run("srun", "-N2", "--ntasks-per-node=1", *CRUN, *args)
    require(p.returncode == 0, "srun ended with", p.returncode, p.stdout, p.stderr, cluster.logs())
    require("the nodes meet at n1:" in p.stderr, "no endpoint was derived:", p.stderr)
    alone = cluster.run(jobs.crun(), "--standalone", "--nproc-per-node=2", jobs.train(), *args)
    require(learned(p.stdout) == learned(alone.stdout), "two nodes learned something else than one")
    say("a step over two nodes, nothing said but --nnodes: the same bits as on one node")


def submit(cluster, name, *options):
    script = cluster.folder / (name + ".sh")
    out = cluster.folder / (name + ".out")
    script.write_text(f"#!/bin/sh\nexec srun -N2 --ntasks-per-node=1 --kill-on-bad-exit=0 {' '.join(CRUN)} classifier "
                      f"--epochs 1000000 --snapshot-dir {cluster.folder}/{name} --max-steps ${{MAX_STEPS:-100000000}}\n")
    p = cluster.run("sbatch", "-N2", "--ntasks-per-node=1", "--parsable", "--open-mode=append", f"--output={out}", *options,
                    script)
    require(p.returncode == 0, "sbatch:", p.stderr)
    return p.stdout.strip(), out


def read(out):
    return out.read_text(errors="replace") if out.exists() else ""


def try_requeue(cluster):
    """scontrol requeue: SIGTERM, a snapshot at one agreed step, and the next run goes on from there."""
    job, out = submit(cluster, "requeue", "--requeue")
    cluster.wait_for("steps", lambda: read(out).count("step ") > 20)
    p = cluster.run("scontrol", "requeue", job)
    require(p.returncode == 0, "scontrol requeue:", p.stderr)
    say("requeued")
    cluster.wait_for("a resumed run", lambda: "resumed from the snapshot of step" in read(out), 200)
    step = re.search(r"resumed from the snapshot of step (\d+)", read(out)).group(1)
    require(int(step) > 0 and (cluster.folder / "requeue" / f"snap-{int(step):012}.safetensors").exists(), "no such snapshot")
    cluster.run("scancel", job)
    cluster.wait_for("the end", lambda: job not in cluster.run("squeue", "-h", "-o", "%A").stdout)
    say(f"requeue: resumed at step {step}")


def try_signal(cluster):
    """--signal before the time limit: the ranks stop after the same step, snapshot, and the job ends well before it is
    killed."""
    job, out = submit(cluster, "signal", "--time=1", "--signal=TERM@55", "--no-requeue")
    cluster.wait_for("steps", lambda: read(out).count("step ") > 20)
    began = time.monotonic()
    cluster.wait_for("the end", lambda: job not in cluster.run("squeue", "-h", "-o", "%A").stdout, 150)
    snapshots = sorted((cluster.folder / "signal").glob("snap-*"))
    require(snapshots, "no snapshot was left:", read(out)[-3000:])
    require("Killed" not in read(out) and "SIGKILL" not in read(out), "somebody was killed:", read(out)[-3000:])
    say(f"signal before the time limit: ended {time.monotonic() - began:.0f} s later with {snapshots[-1].name}")


def main():
    enter_namespaces()
    require(pwd.getpwuid(os.getuid()).pw_name == "root", "needs root")
    with tempfile.TemporaryDirectory(prefix="slurm.") as folder, Cluster(folder) as cluster:
        try_step(cluster)
        try_requeue(cluster)
        try_signal(cluster)
    say("all is well")


if __name__ == "__main__":
    main()
