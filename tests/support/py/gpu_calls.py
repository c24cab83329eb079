"""tests/gpu/run as on the machine with the GPU, without one: a tree that is only read, an emulated card, drivers that cannot be used."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import jobs

RUN = jobs.ROOT / "tests/gpu/run"
LIMIT_S, GATE_S, LIMIT_BYTES, FILES_MAX = 450, 40, 64 << 20, 8
PLACE = "build-gpu/packed"  # in the tree, which travels without what git ignores
DRIVERS = {"missing": "there is no NVIDIA driver", "old": "the NVIDIA driver is for CUDA 11.4", "hung": "not done after"}


def plugin_folder():
    return jobs.build_folder() / "tests/fakes/cuda_host/plugin"


def fake(name):
    return jobs.build_folder() / f"tests/fakes/lib{name}.so"


def why_not_emulated():
    return None if (plugin_folder() / "libcrw-cuda.so").exists() else "the emulation of CUDA needs a C++ compiler that fits the C compiler"


def why_no_plugin():
    return None if (jobs.build_folder() / "worker-runtime/libcrw-cuda.so").exists() else "the CUDA plugin needs nvcc"


def copy_tree(to):
    """The files of the tree that git does not ignore."""
    names = subprocess.run(["git", "-C", jobs.ROOT, "ls-files", "-zco", "--exclude-standard"], capture_output=True, check=True).stdout
    for name in map(os.fsdecode, filter(None, names.split(b"\0"))):
        if os.path.lexists(jobs.ROOT / name):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(jobs.ROOT / name, to / name, follow_symlinks=False)


def prepare(tree, *args):
    """Packs into the tree; what is printed."""
    (tree / PLACE).parent.mkdir(parents=True, exist_ok=True)
    p = jobs.run([RUN, "prepare", jobs.build_folder(), tree / PLACE, *args], timeout=900)
    if p.returncode != 0:
        raise AssertionError(p.stdout + p.stderr)
    return p.stdout


def tree_bytes(tree):
    return sum(p.lstat().st_size for p in tree.rglob("*") if not p.is_dir())


def scratch_environment(scratch):
    for name in ("bin", "lib", "tmp", "state"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    python = f"{pathlib.Path(sys.executable).parent}:{scratch / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": python, "TMPDIR": str(scratch / "tmp"), "XDG_STATE_HOME": str(scratch / "state"),
            "LD_LIBRARY_PATH": str(scratch / "lib"),
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}


def emulated_card(scratch):
    """The environment in which there is one: the plugin and NCCL are in the packed folder, the tools and NVML are here."""
    environment = scratch_environment(scratch)
    (scratch / "lib/libnvidia-ml.so.1").symlink_to(fake("fake_nvml"))
    smi = scratch / "bin/nvidia-smi"
    smi.write_text(f"#!/bin/sh\nexec {sys.executable} {jobs.ROOT}/tests/fakes/nvidia_smi '{scratch}/tmp/gpu-run-*libcrw-cuda.so' \"$@\"\n")
    smi.chmod(0o755)
    subprocess.run([plugin_folder() / "fake-nccl-memory", scratch / "nccl"], check=True)
    return {**environment, "GPU_TEST_DEVICE": "cpu", "LD_PRELOAD": str(fake("fake_nvml")), "FAKE_NVML": "gpus=1",
            "FAKE_NCCL_FILE": str(scratch / "nccl"), "FAKE_NCCL_VERSION": "22809"}


def broken_driver(scratch, kind):
    environment = scratch_environment(scratch)
    if kind != "missing":
        (scratch / "lib/libcuda.so.1").symlink_to(fake("fake_libcuda"))
    return {**environment, "FAKE_LIBCUDA": kind}


def read_only(tree, command):
    """The command in a namespace where the tree cannot be written; where none can be made, the permissions have to do."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0:
        script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, tree, *command]
    subprocess.run(["chmod", "-R", "a-w", tree], check=True)
    return command


def listing(tree):
    return sorted((str(p.relative_to(tree)), p.lstat().st_mtime_ns) for p in tree.rglob("*"))


def call(tree, name, reports, environment, *parts, limit_s=LIMIT_S):
    """One command in the root of the tree: (exit code, output, seconds). What the machine would refuse is an AssertionError."""
    reports.mkdir()
    before, began = listing(tree), time.monotonic()
    p = subprocess.Popen([str(a) for a in read_only(tree, [f"{PLACE}/run", name, PLACE, reports, *parts])], cwd=tree, env=environment,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = p.communicate(timeout=limit_s + 5)
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        raise AssertionError(f"the call has not ended within {limit_s} s: {p.communicate()[0]}")
    seconds = time.monotonic() - began
    files = sorted(reports.rglob("*"))
    assert len(files) <= FILES_MAX and all(f.is_file() and re.fullmatch(r"[A-Za-z0-9._-]+", f.name) for f in files), files
    assert listing(tree) == before, "the call has written into the tree"
    assert not list(pathlib.Path(environment["TMPDIR"]).glob("gpu-run-*")), "the call has left files behind"
    return p.returncode, output, seconds


def first_line(reports, name):
    return (reports / f"{name}.md").read_text().splitlines()[0]
