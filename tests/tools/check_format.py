#!/usr/bin/env python3
"""Every C and CUDA source is as clang-format leaves it. The version is fixed, since versions differ in what they do.

Usage: check_format.py [--fix] [PATH...]
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

from tree import ROOT, sources

VERSION = 14
BATCH = 40     # files of one call


def formatter():
    """The command, or None with a line on why."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path:
            text = subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True).stdout
            m = re.search(r"version (\d+)", text)
            if m and int(m.group(1)) == VERSION:
                return path
    print(f"format: clang-format {VERSION} is needed (the package clang-format of Debian 12)")
    return None


def run(command, paths, fix):
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    p = subprocess.run([command, "--style=file", *mode, *paths], cwd=ROOT, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    return {m.group(1) for m in re.finditer(r"^(\S+?):\d+:\d+: error: .*clang-format-violations", p.stdout, re.M)} \
        or ({p.stdout.strip()} if p.returncode else set())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true", help="write the files as they should be")
    parser.add_argument("paths", nargs="*", help="only these")
    args = parser.parse_args()
    command = formatter()
    if not command:
        return 1
    paths = args.paths or sources(tests=True)
    batches = [paths[i:i + BATCH] for i in range(0, len(paths), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        different = sorted(set().union(*pool.map(lambda batch: run(command, batch, args.fix), batches)))
    for path in different:
        print(f"  {path}: run tests/tools/check_format.py --fix {path}")
    print(f"format: {len(paths)} files, {len(different)} differ (0)")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
