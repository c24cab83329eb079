#!/usr/bin/env python3
"""Writes the seeds of fuzz_worker_start: starts as launcher/supervise/worker_start.c writes them, and some that it must refuse.

    tests/fuzz/make_start_seeds.py          (tests/fuzz/seeds/fuzz_worker_start is rewritten)
"""

import hashlib
import pathlib
import shutil
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "seeds/fuzz_worker_start"
CPUS_SIZE = 1024


def start(file, arguments, variables, numbers, n_sent=None, cpus=b"", n_arguments=None, more=b""):
    texts = b"".join(text + b"\0" for text in [file, *arguments, *variables]) + more
    n = len(arguments) if n_arguments is None else n_arguments
    pointers = (len(arguments) + len(variables) + 2) * 8
    head = struct.pack("=4I", n, len(variables), sum(1 << i for i in numbers), 16 + 8 + CPUS_SIZE + pointers)
    attributes = struct.pack("=2I", bool(cpus), 0) + cpus.ljust(CPUS_SIZE, b"\0")
    return bytes([len(numbers) if n_sent is None else n_sent]) + head + attributes + bytes(pointers) + texts


SEEDS = [
    start(b"/bin/true", [b"true"], [], []),
    start(b"/usr/bin/python3", [b"python3", b"-u", b"train.py"], [b"RANK=1", b"EMPTY=", b"A=b"], range(5), cpus=b"\x0f"),
    start(b"w", [b"w", b""], [b"RANK=0"], [1, 3, 6]),
    start(b"w", [b"w"], [b"RANK=0"], [1, 3, 6], n_sent=2),
    start(b"w", [b"w"], [b"RANK=0"], [1], n_sent=2),
    start(b"w", [b"w"], [b"RANK=0"], [], n_arguments=0xffffffff),
    start(b"w", [b"w"], [b"RANK=0"], [], more=b"left\0"),
    start(b"w", [b"w"], [b"RANK=0"], [])[:-1],
    start(b"w", [b"w"], [b"RANK=0"], [1, 7]),
    start(b"w", [], [], []),
]


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for seed in SEEDS:
        (FOLDER / hashlib.sha1(seed).hexdigest()[:12]).write_bytes(seed)


if __name__ == "__main__":
    main()
