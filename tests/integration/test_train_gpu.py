"""`train --backend cuda` on emulated GPUs with a fake NCCL: the whole way from the command line to the kernels, but
for the silicon. What it computes is compared with the CPU backend."""

import json
import os
import re
import subprocess
import time

import pytest

import jobs
from jobs import assert_one_sentence
from nodes import Nodes, free_port


def plugin_folder():
    return jobs.build_folder() / "tests" / "fakes" / "cuda_host" / "plugin"


pytestmark = pytest.mark.skipif(not (plugin_folder() / "libcrw-cuda.so").exists(),
                                reason="the emulation of CUDA needs a C++ compiler that fits the C compiler")

# enum fake_fault
FAULT_REDUCE_REFUSED, FAULT_ASYNC_ERROR, FAULT_SLOW_ERROR, FAULT_DEAF = 5, 7, 12, 14


@pytest.fixture
def gpu(tmp_path):
    """Environment of a job whose GPU is emulated; call with a fault to have one. schedule: when the device's work runs
    (tests/fakes/cuda_host/runtime.cpp)."""
    def environment(*fault, schedule="late"):
        memory = tmp_path / f"nccl-{len(list(tmp_path.iterdir()))}"
        subprocess.run([plugin_folder() / "fake-nccl-memory", memory, *map(str, fault)], check=True)
        # A device that hangs keeps its memory, and what refers to it, until the process ends.
        sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        return {**os.environ, "ASAN_OPTIONS": sanitizer, "CRW_PLUGIN_DIR": str(plugin_folder()), "FAKE_NCCL_FILE": str(memory),
                "CUDA_HOST_SCHEDULE": schedule,
                "CRW_NCCL_LIBRARY": str(plugin_folder() / "libfake-nccl.so")}
    return environment


def job(program, n, *args, crun_args=()):
    return jobs.train_job(n, "--oversubscribe-gpu", *args, program=program, crun_args=crun_args)


def epochs_of(path):
    return [m for m in map(json.loads, path.read_text().splitlines()) if "param_crc32c" in m]


def assert_same_curve(on_gpu, on_cpu):
    assert len(on_gpu) == len(on_cpu) > 0
    for a, b in zip(on_gpu, on_cpu):
        assert a["step"] == b["step"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["loss_all"] == pytest.approx(b["loss_all"], rel=1e-5)
        assert a["test_accuracy"] == b["test_accuracy"]


@pytest.mark.sanitize
@pytest.mark.parametrize("program, n, args", [
    ("toy", 1, ("--epochs", 2)),
    ("toy", 2, ("--shape", "20x1", "--optimizer", "adamw", "--epochs", 2)),
    ("classifier", 2, ("--epochs", 2, "--log-every", 0, "--lr-schedule", "step:1:0.5")),
    ("classifier", 1, ("--epochs", 1, "--log-every", 0, "--accumulate", 3, "--clip-norm", 0.2)),
])
def test_same_curve_as_on_the_cpu(tmp_path, gpu, program, n, args):
    for backend in ("cuda", "cpu"):
        p = jobs.run(job(program, n, "--backend", backend, "--metrics", tmp_path / backend, *args), env=gpu())
        assert p.returncode == 0, p.stderr
        assert (" on GPUs, " if backend == "cuda" else " on CPUs, ") in p.stdout
        assert ("all-reduce of 4 MiB over 2 GPUs moves" in p.stdout) == (backend == "cuda" and n == 2)
        assert p.stdout.count("matrix products by libcrw: fp32") == (backend == "cuda")
    assert_same_curve(epochs_of(tmp_path / "cuda"), epochs_of(tmp_path / "cpu"))


def test_first_steps_of_mnist(small_data, gpu):
    losses = {}
    for backend in ("cuda", "cpu"):
        p = jobs.run([str(jobs.train()), "mnist", "--data", str(small_data), "--backend", backend, "--batch-size", "8",
                      "--max-steps", "3", "--log-every", "1"], env=gpu())
        assert p.returncode == 0, p.stderr
        losses[backend] = [float(x) for x in re.findall(r"^step \d+  loss ([\d.]+)", p.stdout, re.M)]
    assert len(losses["cpu"]) == 3
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)


def classifier(tmp_path, name, n, environment, *args, crun_args=()):
    """A job of n ranks that may be restarted once: what it wrote, and the parameters at its end."""
    p = jobs.run(job("classifier", n, "--backend", "cuda", "--epochs", 2, "--log-every", 0, "--metrics", tmp_path / name,
                     *args, crun_args=("--max-restarts=1", *crun_args)), env=environment)
    assert p.returncode == 0, p.stderr
    assert "fake NCCL" not in p.stderr, p.stderr  # a graph that outlives its communicator, or an abort that waits for it
    return p, epochs_of(tmp_path / name)[-1]["param_crc32c"]


def assert_lost_nothing(tmp_path, n, step, environment, faulty=None, args=()):
    """Killed inside a step: the other ranks' step is not taken, the first one saves, and the end is the undisturbed one's."""
    _, expected = classifier(tmp_path, "undisturbed", n, environment(), *args)
    p, crc = classifier(tmp_path, "killed", n, faulty or environment(), "--snapshot-dir", tmp_path / "s",
                        "--fault", f"rank={n - 1},step={step},kind=kill", *args)
    assert f"resumed from the snapshot of step {step - 1}" in p.stdout
    assert crc == expected


def assert_replaced(tmp_path, n, rank, environment, *args):
    _, expected = classifier(tmp_path, "undisturbed", n, environment(), *args)
    p, crc = classifier(tmp_path, "replaced", n, environment(), "--fault", f"rank={rank},step=40,kind=kill", *args,
                        crun_args=("--restart-policy=replace",))
    assert "will replace what has failed" in p.stderr
    _, resumes = jobs.read_metrics(tmp_path / "replaced")
    assert [(r["from"], r["step"]) for r in resumes] == [("peers", 39)], p.stderr
    assert crc == expected


def test_hosts_save_the_same(small_data, tmp_path, gpu):
    """Each rank has statistics of batch norm of its own on its device; what is saved within an epoch is rank 0's. Each
    worker believes to be the first of its host."""
    args = ("--backend", "cuda", "--oversubscribe-gpu", "--data", small_data, "--batch-size", 8, "--snapshot-every", 2, "--keep", 9,
            "--save-on-every-host", "--max-steps", 3)
    script = 'export LOCAL_RANK=0; exec "$@" --snapshot-dir "$FOLDER/$RANK"'
    p = jobs.run([jobs.crun(), "--standalone", "--nproc-per-node=2", "--no-python", "sh", "-c", script, "sh", jobs.train(), "mnist",
                  *map(str, args)], env={**gpu(), "FOLDER": str(tmp_path / "s")})
    assert p.returncode == 0, p.stderr
    files = sorted(f.name for f in (tmp_path / "s" / "0").glob("snap-*"))
    assert files == ["snap-000000000002.safetensors", "snap-000000000003.safetensors"]
    for name in files:
        assert (tmp_path / "s" / "0" / name).read_bytes() == (tmp_path / "s" / "1" / name).read_bytes()


@pytest.mark.parametrize("n, schedule", [(2, "late"), (2, "early"), (2, "11"), (3, "late"), (3, "early"), (4, "12")])
def test_killed_rank_and_resume(tmp_path, gpu, n, schedule):
    """Early: the killed rank's part of the all-reduce completes, so the other device has all it needs for the step."""
    assert_lost_nothing(tmp_path, n, 40, lambda: gpu(schedule=schedule))


@pytest.mark.parametrize("n, rank, schedule", [(2, 1, "late"), (3, 0, "early"), (4, 2, "12")])
def test_killed_rank_is_replaced(tmp_path, gpu, n, rank, schedule):
    """The others keep their processes: the state comes from their devices, and NCCL connects them to the new one."""
    assert_replaced(tmp_path, n, rank, lambda: gpu(schedule=schedule))


def test_aborting_peer(tmp_path, gpu):
    """Rank 1 breaks the collective off that rank 2 left, which completes it on rank 0 with stale numbers before rank 0
    knows of the failure."""
    assert_lost_nothing(tmp_path, 3, 40, gpu, gpu(FAULT_SLOW_ERROR, 0, 3))


def test_collective_that_nothing_releases(tmp_path, gpu):
    """The state is saved behind the back of a kernel that hangs, and the process ends."""
    started = time.monotonic()
    assert_lost_nothing(tmp_path, 2, 40, gpu, gpu(FAULT_DEAF, 0, 0))
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("fault, n_good, sentence", [
    (FAULT_REDUCE_REFUSED, 0, "NCCL failed here waiting for the first all-reduce"),
    (FAULT_ASYNC_ERROR, 30, "NCCL reports an error"),
])
def test_nccl_fails(tmp_path, gpu, fault, n_good, sentence):
    """One rank's communicator fails: reported, restarted, resumed, and the same end."""
    args = ("--backend", "cuda", "--epochs", 2, "--log-every", 0, "--snapshot-dir", tmp_path / "s",
            "--snapshot-every", 5, "--metrics", tmp_path / "m")
    p = jobs.run(job("classifier", 2, *args, crun_args=("--max-restarts=1",)), env=gpu(fault, 1, n_good))
    assert p.returncode == 0, p.stderr
    assert sentence in p.stderr
    assert epochs_of(tmp_path / "m")[-1]["step"] == 126


@pytest.mark.sanitize
def test_too_few_gpus(gpu):
    p = jobs.run(jobs.train_job(2, "--backend", "cuda", program="toy"), env=gpu())
    assert p.returncode == 1
    assert "train: there is no GPU for rank 1: it is number 1 on its host, and 1 of them" in p.stderr


def test_old_gpu(gpu):
    """auto trains on the CPU and warns; cuda refuses."""
    env = {**gpu(), "CUDA_HOST_CAPABILITY": "75"}
    p = jobs.run([str(jobs.train()), "toy", "--epochs", "1"], env=env)
    assert p.returncode == 0 and " on CPUs, " in p.stdout
    assert "because no GPU can be used: GPU 0 has compute capability 7.5, and 8.0 is needed" in p.stderr
    p = jobs.run([str(jobs.train()), "toy", "--backend", "cuda"], env=env)
    assert_one_sentence(p, 1, "--backend cuda: there is no GPU: GPU 0 has compute capability 7.5")


def test_nccl_beside_torch(tmp_path, gpu):
    """As in a virtual environment that is not activated for the loader."""
    lib = tmp_path / "venv/lib/python3.12/site-packages/nvidia/nccl/lib"
    lib.mkdir(parents=True)
    (lib / "libnccl.so.2").symlink_to(plugin_folder() / "libfake-nccl.so")
    env = {**gpu(), "VIRTUAL_ENV": str(tmp_path / "venv")}
    del env["CRW_NCCL_LIBRARY"]
    p = jobs.run(job("toy", 2, "--backend", "cuda", "--epochs", 1), env=env)
    assert p.returncode == 0, p.stderr
    python = tmp_path / "venv/bin/python3"
    python.parent.mkdir()
    python.touch(0o755)
    env["VIRTUAL_ENV"], env["PATH"] = "/nonexistent", f"{python.parent}:{env['PATH']}"
    p = jobs.run(job("toy", 2, "--backend", "cuda", "--epochs", 1), env=env)
    assert p.returncode == 0, p.stderr


def test_old_nccl_shares_a_gpu(tmp_path, gpu):
    """NCCL refuses two ranks of one GPU before 2.30.3, unless each seems to be on a host of its own; also behind a restart,
    and where a rank was replaced."""
    def environment():
        return {**gpu(), "FAKE_NCCL_VERSION": "22809"}

    undisturbed, expected = classifier(tmp_path, "undisturbed", 2, environment())
    assert "NCCL 2.28.9; an all-reduce of 4 MiB over 2 GPUs" in undisturbed.stdout
    for name, policy in (("restarted", "all"), ("replaced", "replace")):
        _, crc = classifier(tmp_path, name, 2, environment(), "--snapshot-dir", tmp_path / f"{name}-s",
                            "--fault", "rank=1,step=40,kind=kill", crun_args=(f"--restart-policy={policy}",))
        assert crc == expected


def test_nccl_refuses_a_shared_gpu(gpu):
    """The names that make ranks hosts of their own are the user's, where they are set."""
    p = jobs.run(job("toy", 2, "--backend", "cuda"), env={**gpu(), "FAKE_NCCL_VERSION": "22809", "NCCL_HOSTID": "one"})
    assert p.returncode == 1
    assert "NCCL failed here waiting for NCCL to connect: invalid usage" in p.stderr


@pytest.mark.parametrize("args, names", [((), set()),
                                         (("defaults",), {"NCCL_DEBUG", "NCCL_RAS_ENABLE", "NCCL_SOCKET_IFNAME"})])
def test_variables_are_set_only_when_asked_for(gpu, args, names):
    env = {name: value for name, value in gpu().items() if not name.startswith("NCCL_")}
    p = subprocess.run([jobs.build_folder() / "tests/workers/trainer_of_ones_own", *args], env=env, capture_output=True,
                       text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    assert set(p.stdout.split()) == names


def test_no_plugin(tmp_path):
    p = jobs.run([str(jobs.train()), "toy", "--backend", "cuda"], env={**os.environ, "CRW_PLUGIN_DIR": str(tmp_path)})
    assert_one_sentence(p, 1, "--backend cuda: there is no GPU: there is no libcrw-cuda.so in")


def test_one_gpu_is_full(gpu):
    """All ranks end with that rank's sentence, before any of them looks for NCCL."""
    p = jobs.run(job("toy", 2, "--backend", "cuda"),
                 env={**gpu(), "CUDA_HOST_FULL": "1", "CRW_NCCL_LIBRARY": "/nonexistent/libnccl.so"})
    assert p.returncode == 1
    assert "train: cannot make a trainer on the device: out of memory" in p.stderr
    assert "NCCL" not in p.stderr


def test_no_nccl(gpu):
    p = jobs.run(job("toy", 2, "--backend", "cuda"), env={**gpu(), "CRW_NCCL_LIBRARY": "/nonexistent/libnccl.so"})
    assert p.returncode == 1
    assert "NCCL cannot be loaded: /nonexistent/libnccl.so" in p.stderr


@pytest.mark.parametrize("backend, args, sentence", [
    ("cpu", ("--precision", "tf32"), "--precision tf32 is for GPUs"),
    ("cuda", ("--fault", "rank=0,step=1,kind=nan"), "--fault kind=nan is for the CPU"),
])
def test_what_only_one_of_them_can(gpu, backend, args, sentence):
    p = jobs.run([str(jobs.train()), "toy", "--backend", backend, *args], env=gpu())
    assert_one_sentence(p, 1, sentence)


# ---- gradients averaged on the host: no NCCL is there, and all ranks share one GPU

HOST = ("--reduce", "host")


@pytest.fixture
def gpu_without_nccl(gpu):
    return lambda schedule="late": {**gpu(schedule=schedule), "CRW_NCCL_LIBRARY": "/nonexistent/libnccl.so"}


@pytest.mark.sanitize
@pytest.mark.parametrize("program, n, args", [
    ("toy", 2, ("--shape", "20x1", "--epochs", 2)),
    ("classifier", 3, ("--optimizer", "sgd", "--epochs", 1, "--log-every", 0, "--accumulate", 3, "--clip-norm", 0.2)),
    ("classifier", 4, ("--epochs", 2, "--log-every", 0, "--lr-schedule", "step:1:0.5")),
])
def test_host_reduces_as_on_the_cpu(tmp_path, gpu_without_nccl, program, n, args):
    """Twice the same bits, whenever the device runs its work; and the CPU's curve."""
    for name, backend, schedule in (("late", "cuda", "late"), ("early", "cuda", "early"), ("cpu", "cpu", "late")):
        p = jobs.run(job(program, n, *HOST, "--backend", backend, "--metrics", tmp_path / name, *args), env=gpu_without_nccl(schedule))
        assert p.returncode == 0, p.stderr
        assert (f"libcrw averages the gradients of {n} workers on the host" in p.stdout) == (backend == "cuda")
    late, early = (epochs_of(tmp_path / name) for name in ("late", "early"))
    assert [e["param_crc32c"] for e in late] == [e["param_crc32c"] for e in early]
    assert_same_curve(late, epochs_of(tmp_path / "cpu"))


def test_hosts_reduce_between_nodes(tmp_path, gpu_without_nccl):
    """Two ranks share the GPU of each of two nodes: the bits of four that share one."""
    args = ("--backend", "cuda", *HOST, "--epochs", 1, "--log-every", 0)
    p = jobs.run(job("classifier", 4, *args), env=gpu_without_nccl())
    assert p.returncode == 0, p.stderr
    endpoint = f"--rdzv-endpoint=localhost:{free_port()}"
    with Nodes(tmp_path) as nodes:
        for _ in range(2):
            nodes.crun("--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", endpoint, "--rdzv-id=reduce", "--no-python",
                       jobs.train(), "classifier", "--oversubscribe-gpu", *args, env=gpu_without_nccl("early"))
        assert nodes.codes() == [0, 0], nodes.texts()
        text = "".join(node.text() for node in nodes)
    assert re.findall(r"parameters (\w{8})", text) == re.findall(r"parameters (\w{8})", p.stdout) != []


def test_killed_rank_and_resume_with_the_host(tmp_path, gpu_without_nccl):
    """The others wait in libcrw's sum, which finds the death by itself."""
    assert_lost_nothing(tmp_path, 3, 40, gpu_without_nccl, args=HOST)


@pytest.mark.parametrize("n, rank, schedule", [(2, 0, "late"), (4, 2, "early")])
def test_killed_rank_is_replaced_with_the_host(tmp_path, gpu_without_nccl, n, rank, schedule):
    assert_replaced(tmp_path, n, rank, lambda: gpu_without_nccl(schedule), *HOST)


def test_host_drops_a_step_that_is_not_finite(tmp_path, gpu_without_nccl):
    """As on the CPU: no rank takes the step, and the state before it is saved."""
    reported = {}
    for backend in ("cuda", "cpu"):
        p = jobs.run(job("toy", 2, *HOST, "--backend", backend, "--lr", "1e30", "--snapshot-dir", tmp_path / backend), env=gpu_without_nccl())
        assert p.returncode == 1
        reported[backend] = re.findall(r"of step (\d+) is", p.stderr)[0], [f.name for f in (tmp_path / backend).glob("snap-*")]
    assert reported["cuda"] == reported["cpu"] and len(reported["cpu"][1]) == 1


def test_snapshot_of_either_reduction_goes_on_with_the_other(tmp_path, gpu):
    for step, reduce in ((20, "host"), (40, "nccl"), (60, "host")):
        p = jobs.run(job("classifier", 2, "--backend", "cuda", "--reduce", reduce, "--log-every", 0, "--max-steps", step,
                         "--snapshot-dir", tmp_path / "s"), env=gpu())
        assert p.returncode == 0, p.stderr
        assert step == 20 or f"resumed from the snapshot of step {step - 20}" in p.stdout


@pytest.mark.parametrize("code, args, sentence", [
    (1, ("--backend", "cpu", "--reduce", "nccl"), "--reduce nccl is for GPUs, and the CPU trains; use host"),
    (2, ("--reduce", "mpi"), "--reduce mpi: not nccl or host"),
])
def test_reductions_that_there_are_not(gpu, code, args, sentence):
    assert_one_sentence(jobs.run([str(jobs.train()), "toy", *args], env=gpu()), code, sentence)
