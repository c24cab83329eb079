"""The wheel on a machine with nothing: an empty Debian 12 without a compiler, then python3-venv, the wheel, PyTorch and a job
of an unmodified script with 2 ranks (tests/soak wheel). Prints each command with its seconds, and the sizes.

The system is made by debootstrap from the archive that apt uses here; the wheel is packaging/build-wheel's for this
machine. The packages of PyTorch are downloaded by pip before, so that the seconds are those of the installation.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = "bookworm"
TORCH = "2.13.0"
COMMAND_S = 1200
COMPILERS = ("cc", "gcc", "clang", "tcc", "c++", "g++", "ld", "as", "make")
RANKS = "echo RANK $RANK OF $WORLD_SIZE"
SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4) * (dist.get_rank() + 1)).sum().backward()
gradients = [torch.empty(1, 4) for _ in range(dist.get_world_size())]
dist.all_gather(gradients, model.module.weight.grad)
assert all(torch.equal(g, gradients[0]) for g in gradients)
sys.stdout.write(f"RANK {dist.get_rank()} OF {dist.get_world_size()} GRADIENT {gradients[0][0, 0].item()}\\n")
dist.destroy_process_group()
"""


class Failed(Exception):
    pass


def run(*command, shown=None):
    """Its output; the command and its seconds are printed."""
    words = [str(word) for word in command]
    began = time.monotonic()
    p = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_S)
    print(f"{time.monotonic() - began:7.1f} s  {shown or ' '.join(words)}", flush=True)
    if p.returncode:
        raise Failed(f"exit code {p.returncode}:\n{p.stdout[-4000:]}")
    return p.stdout


def archive():
    """The address of Debian's archive in apt's configuration."""
    listed = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"],
                            stdout=subprocess.PIPE, text=True, check=True).stdout
    found = [line.split()[0] for line in listed.splitlines() if line.split()[1:] == [SUITE, "main"]]
    if not found:
        raise Failed(f"apt's lists have no archive of {SUITE}: run apt-get update")
    return found[0]


class System:
    """A Debian in a folder. Each command has mounts of its own, so none remains."""

    def __init__(self, folder, wheels):
        self.root, self.wheels = folder / "root", wheels

    def make(self):
        run("debootstrap", "--variant=minbase", SUITE, self.root, archive(), shown=f"debootstrap --variant=minbase {SUITE}")
        (self.root / "wheels").mkdir()

    def run(self, command, shown=None):
        mounts = ('mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && mount --bind -o ro "$2" "$1/wheels" && '
                  'exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive '
                  'sh -euc "$3"')
        return run("unshare", "--mount", "sh", "-euc", mounts, "system", self.root, self.wheels, command, shown=f"# {shown or command}")

    def size(self, path):
        return sum(f.lstat().st_size for f in (self.root / path).rglob("*") if f.is_file() and not f.is_symlink())


def lines_of(text, start):
    return sorted(line for line in text.splitlines() if line.startswith(start))


def check(what, found, expected):
    if found != expected:
        raise Failed(f"{what}: {found} instead of {expected}")


def make_wheel(folder):
    run(ROOT / "packaging" / "build-wheel", "--arch", os.uname().machine, "--out", folder, shown=f"packaging/build-wheel --arch {os.uname().machine}")
    wheel, = folder.glob("crun_launch-*.whl")
    print(f"{'':11}{wheel.name}: {wheel.stat().st_size} bytes")


def install_and_run(system):
    system.run("apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv")
    found = system.run(f"for name in {' '.join(COMPILERS)}; do command -v $name || true; done", "which compilers are there")
    check("compilers", found.split(), [])
    system.run("python3 -m venv /venv")
    before = system.size("venv")
    system.run("/venv/bin/pip install -q --no-index --find-links /wheels crun-launch")
    print(f"{'':11}installed: {system.size('venv') - before} bytes")
    text = system.run(f"/venv/bin/crun-launch --nproc-per-node=2 --no-python sh -c '{RANKS}'")
    check("ranks", lines_of(text, "RANK"), ["RANK 0 OF 2", "RANK 1 OF 2"])


def install_and_run_torch(system):
    system.run(f"/venv/bin/pip install -q --no-index --find-links /wheels torch=={TORCH} numpy")
    (system.root / "root" / "train.py").write_text(SCRIPT)
    for second in ("", " (again)"):
        command = "/venv/bin/crun-launch --nproc-per-node=2 /root/train.py"
        text = system.run(command, command + second)
        check("ranks", lines_of(text, "RANK"), [f"RANK {rank} OF 2 GRADIENT 3.0" for rank in (0, 1)])


def missing():
    if os.geteuid():
        return "root is needed for chroot and mount"
    for program in ("debootstrap", "unshare", "apt-get"):
        if not shutil.which(program):
            return f"{program} is needed: apt-get install {program}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-torch", action="store_true", help="without PyTorch: installation of the wheel and a job of shell scripts")
    args = parser.parse_args()
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wheels = folder / "wheels"
        wheels.mkdir()
        try:
            make_wheel(wheels)
            if not args.no_torch:
                run(sys.executable, "-m", "pip", "download", "-q", "-d", wheels, "--only-binary=:all:", "--python-version=3.11",
                    f"torch=={TORCH}", "numpy", shown=f"pip download torch=={TORCH} numpy")
            system = System(folder, wheels)
            system.make()
            install_and_run(system)
            if not args.no_torch:
                install_and_run_torch(system)
        except Failed as failed:
            print(failed)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
