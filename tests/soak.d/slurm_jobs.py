#!/usr/bin/env python3
"""Jobs under a real Slurm on this machine: a step over both nodes without any endpoint, a requeue that resumes, and the
signal before a time limit. See slurm_cluster.py for what it needs."""

import os
import pwd
import re
import tempfile
import time

import jobs
from slurm_cluster import Cluster, enter_namespaces, require, say


def learned(text):
    found = re.findall(r"parameters ([0-9a-f]{8})", text)
    require(found, "no parameters in:", text)
    return found[-1]


CRUN = (jobs.crun(), "--nnodes=2", "--nproc-per-node=1", jobs.train())


def try_step(cluster):
    """The command line has --nnodes only."""
    args = ("classifier", "--epochs", "2")
    p = cluster.run("srun", "-N2", "--ntasks-per-node=1", *CRUN, *args)
    require(p.returncode == 0, "srun ended with", p.returncode, p.stdout, p.stderr, cluster.logs())
    require("the nodes meet at n1:" in p.stderr, "no endpoint was derived:", p.stderr)
    require("this job is open" not in p.stderr, "the nodes did not agree on a secret by munge:", p.stderr)
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
    require("Killed" not in read(out) and "SIGKILL" not in read(out), "a process was killed:", read(out)[-3000:])
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
