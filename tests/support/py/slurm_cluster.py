"""Slurm with one controller and two node daemons on this machine: a Cluster, in namespaces of its own.

Needs root and Debian's slurmctld, slurmd, slurm-client and munge. Ports are fixed inside the namespaces, n1 and n2 are
names for 127.0.0.1, and nothing remains outside."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys

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
            sys.exit(f"slurm: waited in vain for {what}\n{self.logs()}")

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
        sys.exit("slurm: " + " ".join(map(str, words)))
