#!/usr/bin/env python3
"""clang-tidy on the C sources outside tests, with the checks and reasons of .clang-tidy and the compile database of a build.

All files take a quarter of an hour on two cores, so without --all these are looked at: what differs from the branch it
goes to (origin/main, else the last commit), and one in PARTS of the others, another part for each commit.

Usage: check_tidy.py [--all] [--build DIR] [PATH...]
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys

from tree import ROOT, sources

PARTS = 12
FINDING = re.compile(r"^(\S+?:\d+:\d+: (?:warning|error): .*)$", re.M)


def git_lines(*args):
    p = subprocess.run(["git", "-C", str(ROOT), *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return p.stdout.split("\n") if p.returncode == 0 else []


def chosen(paths):
    base = (git_lines("merge-base", "HEAD", "origin/main") or git_lines("rev-parse", "HEAD~1") or ["HEAD"])[0]
    changed = set(git_lines("diff", "--name-only", base)) if base else set()
    turn = int((git_lines("rev-list", "--count", "HEAD") or ["0"])[0] or 0)
    return [p for i, p in enumerate(paths) if p in changed or i % PARTS == turn % PARTS]


def tidy(build, path):
    p = subprocess.run(["clang-tidy", "-p", build, "--quiet", str(ROOT / path)], cwd=ROOT, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True)
    found = FINDING.findall(p.stdout)
    if p.returncode and not found:
        found = [f"{path}: {p.stderr.strip()[-500:]}"]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--build", default=os.environ.get("CRUN_BUILD", "build"))
    parser.add_argument("paths", nargs="*")
    args = parser.parse_args()
    database = ROOT / args.build / "compile_commands.json"
    if not database.is_file():
        print(f"tidy: {database} is missing; configure a build with Meson first")
        return 1
    compiled = {os.path.relpath(os.path.realpath(os.path.join(e["directory"], e["file"])), ROOT)
                for e in json.loads(database.read_text())}
    paths = [p for p in sources() if p.endswith(".c") and p in compiled]
    paths = args.paths or (paths if args.all else chosen(paths))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = sorted({line.replace(f"{ROOT}/", "").replace("build/../", "").removeprefix("../")
                        for lines in pool.map(lambda p: tidy(str(database.parent), p), paths) for line in lines})
    for line in found:
        print(f"  {line}")
    print(f"tidy: {len(paths)} files, {len(found)} findings (0)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
