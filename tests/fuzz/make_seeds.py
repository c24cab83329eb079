#!/usr/bin/env python3
"""Writes the seeds of the wire's fuzz targets from the recorded conversations.

    tests/fuzz/make_seeds.py          (from the source root; tests/fuzz/seeds/ is rewritten)

A seed is one connection: what its client sent (fuzz_wire_request), or its requests as action bytes and what
its server sent (fuzz_wire_reply); or all connections, as records of a client and what it sent (fuzz_store).
Long ones are left out: a fuzzer wants small seeds.
"""

import hashlib
import pathlib
import re
import shutil
import struct

SIZE_MAX = 700
SLICES = 7  # the byte that chooses slices; any will do

ROOT = pathlib.Path(__file__).resolve().parent
TRANSCRIPTS = ROOT.parent / "data" / "transcripts"
LINE = re.compile(r"([CS])(\d*): ([0-9a-f]+)$")


def conversations(path):
    """{connection: [("C" or "S", bytes), ...]}"""
    found = {}
    for line in path.read_text().splitlines():
        match = LINE.match(line)
        if match:
            side, connection, digits = match.groups()
            found.setdefault(connection or "1", []).append((side, bytes.fromhex(digits)))
    return found


def action(message):
    """The request as one byte: number of keys in a list, operation."""
    n_items = min(struct.unpack("<Q", message[1:9])[0], 7) if message[0] in (5, 6, 10, 11) else 0
    return n_items << 5 | message[0]


def write(target, content):
    if len(content) <= SIZE_MAX:
        name = hashlib.sha1(content).hexdigest()[:12]
        (ROOT / "seeds" / target / name).write_bytes(content)


def records(path):
    """What the clients send, in order, in records of at most 255 bytes. They count as validated already."""
    out = bytes([0])
    for line in path.read_text().splitlines():
        match = LINE.match(line)
        if match and match.group(1) == "C":
            client, sent = int(match.group(2) or 1) % 4, bytes.fromhex(match.group(3))
            for at in range(0, 0 if sent[0] == 0 else len(sent), 255):
                piece = sent[at : at + 255]
                out += bytes([client, len(piece)]) + piece
    return out


def main():
    for target in ("fuzz_wire_request", "fuzz_wire_reply", "fuzz_store"):
        shutil.rmtree(ROOT / "seeds" / target, ignore_errors=True)
        (ROOT / "seeds" / target).mkdir(parents=True)
    for path in sorted(TRANSCRIPTS.glob("*.txt")):
        write("fuzz_store", records(path))
        for lines in conversations(path).values():
            said = b"".join(data for side, data in lines if side == "C")
            write("fuzz_wire_request", bytes([SLICES]) + said)
            if "err-" in path.name:
                continue  # its lines are segments, not messages
            actions = bytes(action(data) for side, data in lines if side == "C")[:255]
            answered = b"".join(data for side, data in lines if side == "S")
            write("fuzz_wire_reply", bytes([SLICES, len(actions)]) + actions + answered)


if __name__ == "__main__":
    main()
