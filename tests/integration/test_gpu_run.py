"""tests/gpu/run itself, on emulated GPUs with a fake NCCL: its parts run, its report comes back whatever happens."""

import json
import lzma
import os
import re
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile

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


def hang(folder, name):
    (folder / name).write_text("#!/bin/sh\necho begun\nexec sleep 100\n")
    (folder / name).chmod(0o755)


def test_the_report_is_there_after_every_line(tmp_path):
    """The first line is in the files while the second program hangs, for a caller that kills us."""
    folder, reports = tmp_path / "folder", tmp_path / "reports"
    folder.mkdir()
    (folder / "gpu_kernel_loss").symlink_to("/bin/true")
    hang(folder, "gpu_kernel_norm")
    p = subprocess.Popen([RUN, "kernels", folder, reports], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert p.stdout.readline().startswith("ok     kernel_loss")
    try:
        jobs.wait_for(lambda: (reports / "kernels.md").exists() and "kernel_loss" in (reports / "kernels.md").read_text())
        assert [r["name"] for r in json.loads((reports / "kernels.json").read_text())["results"]] == ["kernel_loss"]
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()


def test_a_part_that_never_ends(tmp_path):
    """What a process that not even SIGKILL ends would do: the call ends all the same, with its report."""
    code = ("import importlib.machinery, importlib.util, pathlib, sys, time; "
            "loader = importlib.machinery.SourceFileLoader('run', sys.argv[1]); "
            "run = importlib.util.module_from_spec(importlib.util.spec_from_loader('run', loader)); "
            "loader.exec_module(run); folder = pathlib.Path(sys.argv[2]); run.LATE_S = 1; "
            "run.PARTS['never'] = lambda r: (r.add('begun', True, 0), time.sleep(100)); "
            "run.run_parts(run.Report('never', folder, folder), ['never'])")
    started = time.monotonic()
    p = subprocess.run([sys.executable, "-c", code, RUN, tmp_path], env={**os.environ, "GPU_TEST_CALL_S": "4"}, timeout=90)
    assert p.returncode == 1 and time.monotonic() - started < 80
    results = json.loads((tmp_path / "never.json").read_text())["results"]
    assert [(r["name"], r["ok"]) for r in results] == [("begun", True), ("the call", False)]


def test_packed(tmp_path):
    """What prepare packs is unpacked for the call, outside the folder, and gone behind it."""
    packed, folder, scratch = tmp_path / "packed", tmp_path / "folder", tmp_path / "scratch"
    for made in (packed, folder, scratch):
        made.mkdir()
    (packed / "gpu_kernel_loss").write_text("#!/bin/sh\npwd -P >&2\nexec test -e $(dirname $0)/gpu_kernel_loss\n")
    (packed / "gpu_kernel_loss").chmod(0o755)
    with tarfile.open(folder / "packed.tar.xz", "w:xz") as tar:
        tar.add(packed, ".")
    _, report = run("kernels", folder, tmp_path / "reports", TMPDIR=str(scratch))
    assert [r["ok"] for r in report["results"]] == [True, False, False, False]
    assert [f.name for f in folder.iterdir()] == ["packed.tar.xz"] and not list(scratch.iterdir())


# ------------------------------------------------------------------ NCCL for one architecture

def fat_binary(*entries):
    """(kind, architecture, payload) each."""
    body = b""
    for kind, architecture, payload in entries:
        body += struct.pack("<HHIQ", kind, 0x101, 64, len(payload)) + bytes(12) + struct.pack("<I", architecture) + bytes(32)
        body += payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def slim(*args):
    return subprocess.run([jobs.ROOT / "tests/gpu/slim_nccl.py", *args], capture_output=True, text=True, timeout=60)


def test_slim_nccl(tmp_path):
    """Nothing is left of other architectures and PTX; all else lies where it was, from a library as from a wheel."""
    noise, code = os.urandom(1000), [os.urandom(3000) for _ in range(5)]
    library = (noise + b"\x50\xed\x55\xba" + noise  # the magic number alone is no fat binary
               + fat_binary((2, 80, code[0]), (2, 90, code[1]), (1, 90, code[2]), (2, 100, code[3]))
               + fat_binary((2, 90, code[4])) + noise)
    (tmp_path / "libnccl.so.2").write_bytes(library)
    with zipfile.ZipFile(tmp_path / "nccl.whl", "w") as wheel:
        wheel.writestr("nvidia/nccl/include/nccl.h", "no library")
        wheel.writestr("nvidia/nccl/lib/libnccl.so.2", library)
    expected = library
    for i in (0, 2, 3):
        expected = expected.replace(code[i], bytes(3000))
    for source in ("libnccl.so.2", "nccl.whl"):
        p = slim(tmp_path / source, tmp_path / "slim")
        assert p.returncode == 0, p.stderr
        assert (tmp_path / "slim").read_bytes() == expected
    assert len(lzma.compress(expected)) < len(expected) - 8500


def test_slim_nccl_refuses(tmp_path):
    (tmp_path / "library").write_bytes(fat_binary((2, 80, b"x" * 100)))
    assert "no machine code for architecture 90" in slim(tmp_path / "library", tmp_path / "slim").stderr
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("a", "b")
    assert "holds no libnccl.so.2" in slim(tmp_path / "other.whl", tmp_path / "slim").stderr
    assert "has no entry" in slim_of_damaged(tmp_path).stderr


def slim_of_damaged(tmp_path):
    damaged = bytearray(fat_binary((2, 90, b"x" * 100)))
    struct.pack_into("<Q", damaged, 16 + 8, 1 << 40)  # the payload's length
    (tmp_path / "damaged").write_bytes(damaged)
    return slim(tmp_path / "damaged", tmp_path / "slim")


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
