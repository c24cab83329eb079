"""Packs what tests/gpu/run needs where the GPU is, and computes before what needs none: loss curves of the CPU, and the bits of the
exact kernels, on the emulation."""

import gzip
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

import gpu_parts
from gpu_report import PACK, SETTINGS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EMULATED = "tests/fakes/cuda_host/plugin"
# Name in the folder: where it is in the build, and its twin for the emulation.
PROGRAMS = {f"gpu_kernel_{k}": (f"tests/gpu/gpu_kernel_{k}", f"tests/unit/worker-runtime/kernel_{k}") for k in gpu_parts.KERNELS} | {
    "gpu_kernel_blas": ("tests/gpu/gpu_kernel_blas", "tests/gpu/emulated_kernel_blas"),
    "device_check": ("tests/gpu/device_check", "tests/gpu/emulated_device_check"),
    "train_check": ("tests/gpu/train_check", "tests/gpu/train_check"),
    "libcrw-cuda.so": ("worker-runtime/libcrw-cuda.so", f"{EMULATED}/libcrw-cuda.so"),
    "libnccl.so.2": (None, f"{EMULATED}/libfake-nccl.so"),
    "libfake-cublaslt.so": (None, "tests/unit/worker-runtime/libfake-cublaslt.so"),
    "fake-nccl-memory": (None, f"{EMULATED}/fake-nccl-memory"),
    "crun": ("launcher/crun",) * 2, "crunctl": ("launcher/crunctl",) * 2, "train": ("worker-runtime/train",) * 2,
}
IMAGES = pathlib.Path("/usr/share/datasets/fashion-mnist")
MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
N_IMAGES = 10000
# In place below the folder as below the root: the script looks for the module from there.
IN_PLACE = ("tests/workers/torch_in_place.py", "tests/workers/torch_mnist.py", "tests/workers/torch_trainer.py", "tests/workers/shared_gpu",
            "python/crun_launch/__init__.py", "python/crun_launch/worker.py")
SCRIPTS = ("run", "gpu_report.py", "gpu_parts.py", "torch_speed.py", "torch_products.py")
LIMIT_BYTES = 64 << 20
CURVE_S = 600


def missing(build, emulated):
    """What cannot be packed, a sentence each."""
    for name, places in PROGRAMS.items():
        if places[emulated] and not (build / places[emulated]).exists():
            yield f"{build / places[emulated]} is not built (meson: -Dtests=enabled -Dcuda=enabled)"
    if not emulated and not all((IMAGES / f"{name}.gz").exists() for name in MNIST):
        yield f"{IMAGES} has no images (Debian: dataset-fashion-mnist)"


def shorten(source, target):
    """The first N_IMAGES of an IDX file."""
    raw = gzip.decompress(source.read_bytes())
    header, item = (16, 784) if "images" in target.name else (8, 1)
    out = bytearray(raw[: header + N_IMAGES * item])
    out[4:8] = struct.pack(">I", min(N_IMAGES, struct.unpack(">I", raw[4:8])[0]))
    target.write_bytes(out)


def needed_libraries(program):
    """Those that a machine without our packages lacks."""
    text = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for name, path in re.findall(r"(\S+) => (\S+)", text):
        if re.match(r"lib(uv|cjson|cmocka|z)\.", name):
            yield name, pathlib.Path(path)


def copy_all(build, folder, emulated, nccl):
    for name, places in PROGRAMS.items():
        if places[emulated]:
            shutil.copy(build / places[emulated], folder / name)
            for library, path in needed_libraries(build / places[emulated]):
                shutil.copy(path, folder / library)
    for name in IN_PLACE:
        to = folder / "in-place" / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to)
    if not emulated:
        (folder / "data").mkdir()
        for name in MNIST:
            shorten(IMAGES / (name + ".gz"), folder / "data" / name)
    if nccl:
        import slim_nccl  # it is not needed over there
        slim_nccl.write(nccl, folder / "libnccl.so.2", int(os.environ.get("GPU_TEST_ARCHITECTURE", "90")))


def make_settings(folder, emulated):
    """Loss of each epoch on the CPU, on 1 and 2 ranks, with the arguments that the parts use."""
    settings = {"emulated": emulated, "program": "classifier" if emulated else "mnist", "limit": N_IMAGES, "curves": {}}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": "1"}
    for n in (1, 2):
        metrics = folder / f"curve-{n}"
        p = subprocess.run([folder / "crun", "--standalone", f"--nproc-per-node={n}", folder / "train",
                            *gpu_parts.train_program(folder, settings), "--epochs", "2", "--batch-size", str(64 // n), "--backend", "cpu",
                            "--metrics", metrics], env=environment, timeout=CURVE_S, capture_output=True, text=True)
        if p.returncode != 0:
            sys.exit(f"tests/gpu/run: the curve of the CPU on {n} ranks: {p.stderr[-500:]}")
        epochs = gpu_parts.epochs_of(metrics)
        settings["curves"][n], settings["steps"] = [e["loss_all"] for e in epochs], epochs[-1]["step"]
        metrics.unlink()
    (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n")


def write_crcs(build, folder):
    """The emulation's; how many programs have them."""
    n = 0
    for k in gpu_parts.KERNELS:
        twin, crcs = build / PROGRAMS[f"gpu_kernel_{k}"][1], folder / f"crcs-{k}"
        if twin.exists():
            p = subprocess.run([twin], env={**os.environ, "KERNEL_CRCS": str(crcs)}, timeout=CURVE_S, capture_output=True, text=True)
            if p.returncode != 0:
                sys.exit(f"tests/gpu/run: kernel_{k} on the emulation: {p.stderr[-500:]}")
            n += crcs.exists()
    return n


def tree_bytes():
    """Of the files of the tree that travel beside the folder: those that git does not ignore."""
    p = subprocess.run(["git", "-C", ROOT, "ls-files", "-zco", "--exclude-standard"], capture_output=True)
    paths = [ROOT / os.fsdecode(name) for name in p.stdout.split(b"\0") if name]
    return sum(path.lstat().st_size for path in paths if os.path.lexists(path))


def prepare(build, folder, nccl, emulated):
    lacking = list(missing(build, emulated))
    if lacking:
        sys.exit("tests/gpu/run: missing:\n  " + "\n  ".join(lacking))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as unpacked:
        unpacked = pathlib.Path(unpacked)
        copy_all(build, unpacked, emulated, nccl)
        make_settings(unpacked, emulated)
        n = write_crcs(build, unpacked)
        print(f"loss curves of the CPU on 1 and 2 ranks; bits of {n} of {len(gpu_parts.KERNELS)} kernel programs on the emulation")
        with tarfile.open(folder / PACK, "w:xz", preset=3) as tar:
            tar.add(unpacked, ".")
    for name in SCRIPTS:
        shutil.copy(HERE / name, folder)
    packed = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    tree = tree_bytes()
    print(f"{folder}: {packed / 2**20:.1f} MiB; with the tree's own files {(packed + tree) / 2**20:.1f} of {LIMIT_BYTES >> 20} MiB")
    if packed + tree > LIMIT_BYTES:
        sys.exit("tests/gpu/run: that is more than may travel")
