"""Reads tests/map: which tests cover which files."""

import fnmatch
import subprocess
import typing

from tree import ROOT

KINDS = ("unit", "process", "then")


class Block(typing.NamedTuple):
    paths: list[str]  # patterns
    unit: list[str]  # patterns of names of Meson's tests
    process: list[str]  # patterns of test files, from the root of the tree
    then: list[str]  # commands


def read(text):
    """The blocks; ValueError with the line that is none of a block."""
    blocks = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            if not blocks or any(blocks[-1][1:]):
                blocks.append(Block([], [], [], []))
            blocks[-1].paths.extend(line.split())
            continue
        kind, _, rest = line.strip().partition(" ")
        if kind not in KINDS or not blocks:
            raise ValueError(f"tests/map, line {number}: {line.strip()}")
        items = [c.strip() for c in rest.split(";")] if kind == "then" else rest.split()
        getattr(blocks[-1], kind).extend(f"tests/{i}" if kind == "process" else i for i in items)
    return blocks


def load():
    return read((ROOT / "tests/map").read_text())


def covers(pattern, path):
    return fnmatch.fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


def of_path(blocks, path):
    """The blocks of a file, or of a folder: then of all that is in it."""
    return [b for b in blocks if any(covers(p, path) or p.startswith(path.rstrip("/") + "/") for p in b.paths)]


def is_test_file(path):
    return fnmatch.fnmatchcase(path, "tests/int*/test_*.py")


def selection(paths, blocks):
    """(names of unit tests, test files, commands, paths without any); patterns are kept."""
    unit, process, then, unknown = {}, {}, {}, []
    for path in paths:
        found = of_path(blocks, path)
        if is_test_file(path):
            process[path] = None
        elif not found:
            unknown.append(path)
        for block in found:
            unit.update(dict.fromkeys(block.unit))
            process.update(dict.fromkeys(block.process))
            then.update(dict.fromkeys(block.then))
    return list(unit), list(process), list(then), unknown


def changed_files(base):
    """Files that differ from the commit where this branch left base, those that git does not know yet included."""
    def git(*args):
        return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout
    fork = git("merge-base", base, "HEAD").strip()
    names = git("diff", "--name-only", fork).splitlines() + git("ls-files", "--others", "--exclude-standard").splitlines()
    return sorted(set(names))
