"""crun for Python: where its programs are, a store without a launcher, and a rendezvous for torchrun.

    python -m crun_launch alias DIR                              a folder with a link `torchrun` to crun, for PATH
    torchrun --rdzv-backend=crun --rdzv-endpoint=HOST:PORT ...   crun's rendezvous under torchrun (crun_launch.rendezvous)
    import crun_launch.worker                                    notices of crun to the workers of PyTorch
    store = crun_launch.Store()                                  a store in a process of its own (crun_launch.store)

Importing this module imports nothing else; torch is imported by what needs it.
"""

import importlib.metadata
import os
import shutil
import subprocess

__all__ = ["Store", "program"]

# For programs that are not where pip puts them: a folder that has crun and crund.
FOLDER_VARIABLE = "CRUN_PROGRAMS"


def _installed(name):
    """The program that came with this module, as pip has noted it; None without such a note."""
    try:
        files = importlib.metadata.files("crun-launch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for path in files:
        if path.name == name and path.parent.name == "bin":
            return os.path.realpath(path.locate())
    return None


def _is_ours(path):
    """Debian's crun is the OCI runtime, whose version begins otherwise."""
    p = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return p.stdout.split()[:1] in (["crun"], ["crund"]) and p.stdout.split()[1:2] != ["version"]


def program(name):
    """The path of "crun" or "crund": in $CRUN_PROGRAMS, else what came with this module, else what PATH has."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return os.path.join(folder, name)
    path = _installed(name)
    if path and os.access(path, os.X_OK):
        return path
    for candidate in ("crun-launch", "crun") if name == "crun" else (name,):
        path = shutil.which(candidate)
        if path and _is_ours(path):
            return path
    raise FileNotFoundError(f"the program {name} of crun-launch is not installed; pip install crun-launch, or set {FOLDER_VARIABLE}")


def __getattr__(name):
    if name == "Store":
        from crun_launch.store import Store
        return Store
    raise AttributeError(f"module 'crun_launch' has no attribute '{name}'")
