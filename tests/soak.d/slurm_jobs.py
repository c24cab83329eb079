#!/usr/bin/env python3
"""Jobs under a real Slurm on this machine: a step over both nodes without any endpoint, a requeue that resumes, and the
signal before a time limit; and `crun --hosts=auto --launch=srun`, whose steps end with it. See slurm_cluster.py for what it needs."""

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


HOSTS = (jobs.crun(), "--hosts=auto", "--launch=srun", "--nproc-per-node=1")


def try_hosts(cluster):
    """A front inside an allocation. srun passes stdin on, and shows no sentence of its own."""
    args = (jobs.train(), "classifier", "--epochs", "2")
    p = cluster.run("salloc", "-Q", "-N2", *HOSTS, *args)
    alone = cluster.run(jobs.crun(), "--standalone", "--nproc-per-node=2", *args)
    require(p.returncode == 0, "crun --launch=srun ended with", p.returncode, p.stdout, p.stderr, cluster.logs())
    require(learned(p.stdout) == learned(alone.stdout), "two hosts learned something else than one")
    require("srun:" not in p.stderr, "srun is heard:", p.stderr)
    p = cluster.run("salloc", "-Q", "-N2", "sh", "-c", "seq 100000 | $0 \"$@\"", *HOSTS, "--no-python", "sh", "-c",
                    "[ $RANK = 1 ] || exec tail -n 1")
    require(p.stdout == "100000\n", "input of rank 0:", p.stdout, p.stderr)
    p = cluster.run("salloc", "-Q", "-N2", *HOSTS, "--no-python", "sh", "-c", "exit $((7 * RANK))")
    require(p.returncode == 1 and "exitcode  : 7" in p.stderr and "srun:" not in p.stderr, "a failed rank:", p.returncode, p.stderr)
    p = cluster.run("salloc", "-Q", "-N2", *HOSTS, "--hosts=n1,n3", "--no-python", "true")
    require(p.returncode == 1 and "host n3 could not be started: srun could not start a step on it" in p.stderr, "no such node:", p.stderr)
    say("crun --launch=srun: the same bits, input, failures")


def try_end_of_front(cluster, signal):
    """No step is left of a front that was stopped or killed."""
    out = cluster.folder / f"front.{signal}"
    script = f'"$@" > {out} 2>&1 & until [ $(grep -c ^up {out}) = 2 ]; do sleep 0.1; done; kill -{signal} $!; wait $!; code=$?; sleep 20 & ' \
             f'while squeue -h -s | grep -q . && kill -0 $!; do sleep 0.1; done; squeue -h -s; kill $!; exit $code'
    p = cluster.run("salloc", "-Q", "-N2", "sh", "-c", script, "sh", *HOSTS, "--no-python", "sh", "-c", "echo up $RANK; exec sleep 600")
    require(p.returncode == (137 if signal == "KILL" else 1), signal, "ended the front with", p.returncode, read(out))
    require(signal == "KILL" or f"stopped by SIG{signal}" in read(out), signal, "is not named:", read(out))
    require(not p.stdout, "steps are left:", p.stdout)
    say(f"SIG{signal} to the front: no step is left")


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
    snapshots = [int(path.stem[len("snap-"):]) for path in (cluster.folder / "requeue").glob("snap-*.safetensors")]
    require(max(snapshots) >= int(step) > 0, "no such snapshot", step, snapshots)  # the resumed run removes older ones
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
        try_hosts(cluster)
        for signal in ("INT", "TERM", "KILL"):
            try_end_of_front(cluster, signal)
        try_requeue(cluster)
        try_signal(cluster)
    say("all is well")


if __name__ == "__main__":
    main()
