"""tests/gpu/run itself, on emulated GPUs with a fake NCCL: its parts run, its report comes back whatever happens."""

import json
import os
import re
import subprocess

import pytest

import jobs
import strict
import torch_in_place

RUN = jobs.ROOT / "tests/gpu/run"


def plugin_folder():
    return jobs.build_folder() / "tests" / "fakes" / "cuda_host" / "plugin"


needs_emulation = pytest.mark.skipif(not (plugin_folder() / "libcrw-cuda.so").exists(),
                                     reason="the emulation of CUDA needs a C++ compiler that fits the C compiler")


def run(part, folder, reports, *args, **environment):
    p = subprocess.run([RUN, part, folder, reports, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=500, env={**os.environ, **environment})
    files = sorted(f.name for f in reports.iterdir())
    assert files == [f"{part}-logs.tar.gz", f"{part}.json", f"{part}.md"], p.stdout  # at most 8 plain names come back
    report = json.loads((reports / f"{part}.json").read_text())
    assert {"gpus", "nccl", "nccl_version", "topology"} <= set(report["machine"])
    assert (reports / f"{part}.md").read_text().count("\n| ") == len(report["results"]) + 2
    return p, report


@pytest.fixture
def folder(tmp_path):
    """As `run prepare` makes it, with the emulated plugin in the place of the real one."""
    made = tmp_path / "folder"
    made.mkdir()
    for name, program in (("crun", jobs.crun()), ("train", jobs.train()), ("libcrw-cuda.so", plugin_folder() / "libcrw-cuda.so"),
                          ("libnccl.so.2", plugin_folder() / "libfake-nccl.so")):
        (made / name).symlink_to(program)
    return made


@needs_emulation
@pytest.mark.parametrize("part, n_results", [("ranks", 9), ("kill", 8), ("mnist", 5)])
def test_part(tmp_path, folder, part, n_results):
    subprocess.run([plugin_folder() / "fake-nccl-memory", tmp_path / "nccl"], check=True)
    p, report = run(part, folder, tmp_path / "reports", FAKE_NCCL_FILE=str(tmp_path / "nccl"), GPU_TEST_PROGRAM="classifier",
                    GPU_TEST_RANKS="2", GPU_TEST_RECOVERY_S="60", GPU_TEST_STEP="50",
                    ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    assert p.returncode == 0, p.stdout
    assert len(report["results"]) == n_results, p.stdout
    assert report["machine"]["nccl_version"] == 23007 or part == "mnist"


def test_nothing_works(tmp_path):
    """Without programs every line says why; the report is whole."""
    (tmp_path / "empty").mkdir()
    p, report = run("first-hour", tmp_path / "empty", tmp_path / "reports", "--from", "kernels")
    assert p.returncode == 1
    assert not any(r["ok"] for r in report["results"])
    assert all(r["why"] for r in report["results"])
    assert [re.sub(":.*", "", r["name"]) for r in report["results"]][0] == "kernels"
    assert {re.sub(":.*", "", r["name"]) for r in report["results"]} == {"kernels", "memory", "train", "ranks", "kill", "mnist",
                                                                        "sanitizer", "reconfigure", "speed"}


def test_time_is_up(tmp_path):
    """A program that hangs is ended, and what did not get its turn is in the report, in time."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "gpu_kernel_loss").write_text("#!/bin/sh\necho begun\nexec sleep 100\n")
    (tmp_path / "folder" / "gpu_kernel_loss").chmod(0o755)
    p, report = run("kernels", tmp_path / "folder", tmp_path / "reports", GPU_TEST_CALL_S="6")
    assert p.returncode == 1
    assert [r["exit"] for r in report["results"] if "exit" in r][0] == 124
    assert "not done after" in report["results"][0]["why"]
    assert "no time was left for it" in [r["why"] for r in report["results"]]


def test_reconfigure_without_a_gpu(tmp_path):
    """The part for PyTorch in place, with gloo on the CPU."""
    python, why = torch_in_place.python()
    strict.skip_if(why)
    root = tmp_path / "folder"
    for name in ("tests/workers/torch_in_place.py", "tests/workers/torch_mnist.py", "tests/workers/torch_trainer.py",
                 "python/crun_launch/__init__.py", "python/crun_launch/worker.py"):
        (root / "in-place" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "in-place" / name).symlink_to(jobs.ROOT / name)
    (root / "crun").symlink_to(jobs.crun())
    p, report = run("reconfigure", root, tmp_path / "reports", GPU_TEST_DEVICE="cpu", PYTHON_EXEC=python)
    assert p.returncode == 0, p.stdout
    assert len(report["results"]) == 4, p.stdout
