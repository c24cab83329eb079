"""The files of this tree, for the checks: what git tracks, else what is there (a release has no .git)."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(os.environ.get("CRUN_TREE") or pathlib.Path(__file__).resolve().parents[2])
SOURCE = (".c", ".h", ".cu", ".cuh")


def files():
    """Paths below ROOT, relative, sorted."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others",
                             "--exclude-standard"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True)
    if listed.returncode == 0:
        return sorted(p for p in listed.stdout.split("\0") if p and (ROOT / p).is_file())
    return sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                  if p.is_file() and not p.relative_to(ROOT).parts[0].startswith(("build", ".")))


def sources(tests=False):
    """C and CUDA sources; those below tests only when asked for."""
    return [p for p in files() if p.endswith(SOURCE) and (tests or not p.startswith("tests/"))]
