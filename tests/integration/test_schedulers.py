"""crun under Slurm and Kubernetes, as far as their environments go. Slurm itself: tests/soak slurm."""

import random
import re
import socket

import yaml

import jobs
from nodes import Nodes, free_port

MANIFEST = jobs.ROOT / "launcher" / "kubernetes" / "jobset.yaml"
PORT_FIRST, PORTS = 20000, 12000  # launcher/cli/slurm.h
TOY = ("--no-python", jobs.train(), "toy", "--epochs", "2")


def learned(text):
    return re.findall(r"parameters ([0-9a-f]{8})", text)[-1]


def alone(*args, n):
    p = jobs.run([jobs.crun(), "--standalone", f"--nproc-per-node={n}", *args])
    assert p.returncode == 0, p.stderr
    return learned(p.stdout)


# ------------------------------------------------------------------ Slurm

def free_job_id():
    """A job whose port nobody uses."""
    while True:
        job = random.SystemRandom().randrange(1, 1000000)
        port = PORT_FIRST + job * 16 % PORTS
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return job, port
            except OSError:
                pass


def test_a_step_needs_no_endpoint(tmp_path):
    job, port = free_job_id()
    env = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost,other[1-3]"}
    with Nodes(tmp_path) as nodes:
        for task in range(2):
            nodes.crun("--nnodes=2", *TOY, env={**env, "SLURM_PROCID": str(task)})
        assert nodes.codes() == [0, 0], nodes.texts()
        texts = [node.text() for node in nodes]
    for text in texts:
        assert f"step {job}.0 of Slurm: the nodes meet at localhost:{port}" in text
    assert learned("".join(texts)) == alone(*TOY, n=2)


# ------------------------------------------------------------------ Kubernetes

def container(manifest):
    job = manifest["spec"]["replicatedJobs"][0]
    pod = job["template"]["spec"]["template"]["spec"]
    return job, pod, pod["containers"][0]


def plain_environment(c):
    return {e["name"]: e["value"] for e in c["env"] if "value" in e}


def test_the_manifest_says_the_same_everywhere():
    manifest = yaml.safe_load(MANIFEST.read_text())
    job, pod, c = container(manifest)
    env, spec = plain_environment(c), job["template"]["spec"]
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and manifest["kind"] == "JobSet"
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == spec["completions"] == int(env["PET_NNODES"])
    name = f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['spec']['network']['subdomain']}"
    assert env["PET_RDZV_ENDPOINT"].rsplit(":", 1)[0] == name
    # The kubelet kills after the grace; crun is told of it, and neither starts a pod or a job again by itself.
    assert int(env["CRUN_GRACE_SECONDS"]) == pod["terminationGracePeriodSeconds"] > 30
    assert pod["restartPolicy"] == "Never" and spec["backoffLimit"] == 0
    assert all(isinstance(e.get("value", ""), str) for e in c["env"]), "Kubernetes takes no numbers there"
    assert {m["name"] for m in c["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    help_text = jobs.run([jobs.crun(), "--help"]).stdout
    for variable in (e["name"] for e in c["env"] if e["name"].startswith("PET_")):
        assert "--" + variable[4:].lower().replace("_", "-") in help_text, variable


def test_the_manifest_makes_a_job(tmp_path):
    """What it says, with two pods on this machine."""
    env = plain_environment(container(yaml.safe_load(MANIFEST.read_text()))[2])
    env.update(PET_NNODES="2", PET_NPROC_PER_NODE="1", PET_LOCAL_ADDR="127.0.0.1",
               PET_RDZV_ENDPOINT=f"localhost:{free_port()}")
    with Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun(*TOY, env=env)
        assert nodes.codes() == [0, 0], nodes.texts()
        assert learned("".join(node.text() for node in nodes)) == alone(*TOY, n=2)


def test_the_variables_of_kubeflow(tmp_path):
    """Its trainer names the first pod and numbers the pods itself: static rendezvous."""
    env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_port())}
    with Nodes(tmp_path) as nodes:
        for rank in range(2):
            nodes.crun(*TOY, env={**env, "PET_NODE_RANK": str(rank)})
        assert nodes.codes() == [0, 0], nodes.texts()
        assert learned("".join(node.text() for node in nodes)) == alone(*TOY, n=2)
