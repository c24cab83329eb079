#!/usr/bin/env python3
"""The product without its assertions (-DNDEBUG) has to do the same.

 - No assert() assigns, counts, or calls a function that is not in PURE.
 - Code is left out by NDEBUG in the files of GUARDED alone: there it only reads.
 - --build BUILD: each source with assertions compiles there without them and without a warning.

The step threads runs the code with threads and sockets without assertions; tests/soak ndebug runs all unit tests so.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

from tree import ROOT, sources

# Functions of this tree and of libc that change nothing that outlives the call.
PURE = {"ARRAY_SIZE", "blob_room", "buf_size", "check_silence_list", "job_deadline", "list_is_empty", "node_state_now",
        "outbox_size", "reduce_supports", "session_deadline", "sizeof"}
GUARDED = {"launcher/supervise/worker_group.c", "rendezvous/rounds/rounds_check.c"}
ASSERT = re.compile(r"\bassert\s*\(")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
CHANGE = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)|<<=|>>=")
CALL = re.compile(r"\b(\w+)\s*\(")
OUTPUT_OPTIONS = ("-o", "-MF", "-MQ")  # each with a file behind it


def blanked(token):
    return re.sub(r"[^\n]", " ", token.group())


def condition(text, start):
    """What is between a parenthesis that was opened before start and the one that closes it."""
    depth, end = 1, start
    while depth and end < len(text):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[start:end - 1]


def faults_of_source(path, called):
    """Each condition with a side effect, and each NDEBUG that is out of place; adds the functions that conditions call."""
    text = TOKEN.sub(blanked, (ROOT / path).read_text())

    def place(at):
        return f"{path}:{text.count(chr(10), 0, at) + 1}"
    for found in ASSERT.finditer(text):
        inside = condition(text, found.end())
        names = set(CALL.findall(inside))
        called |= names
        if CHANGE.search(inside):
            yield f"{place(found.start())}: assert() changes a value"
        for name in sorted(names - PURE):
            yield f"{place(found.start())}: assert() calls {name}(), which is not known to change nothing"
    if path not in GUARDED and "NDEBUG" in text:
        yield f"{place(text.index('NDEBUG'))}: NDEBUG outside {' and '.join(sorted(GUARDED))}"


def without_assertions(entry):
    """The command of a compile database that only looks at a source, without assertions."""
    words = iter(shlex.split(entry["command"]))
    kept = []
    for word in words:
        if word in OUTPUT_OPTIONS:
            next(words)
        elif word not in ("-MD", "-c"):
            kept.append(word)
    return [*kept, "-DNDEBUG", "-fsyntax-only", "-Werror", "-fdiagnostics-color=never"]


def compile_faults(entry):
    p = subprocess.run(without_assertions(entry), cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [f"without assertions: {line}" for line in p.stdout.splitlines() if ": error: " in line] \
        or ([p.stdout[-500:]] if p.returncode else [])


def commands(build, paths):
    """One entry of the compile database for each of these sources."""
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = os.path.relpath(os.path.realpath(os.path.join(entry["directory"], entry["file"])), ROOT)
        if path in paths:
            entries.setdefault(path, entry)
    return list(entries.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build")
    args = parser.parse_args()
    called, faults, asserting = set(), [], set()
    for path in sources():
        faults += faults_of_source(path, called)
        if ASSERT.search((ROOT / path).read_text()):
            asserting.add(path)
    faults += [f"PURE: no assertion calls {name}()" for name in sorted(PURE - called)]
    entries = commands(ROOT / args.build, asserting) if args.build else []
    if args.build and not entries:
        faults.append(f"{args.build} compiles none of the sources with assertions")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults += [fault for found in pool.map(compile_faults, entries) for fault in found]
    for fault in faults:
        print(f"  {fault}")
    print(f"assertions: {len(asserting)} sources, {len(entries)} compiled without, {len(faults)} faults (0)")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
