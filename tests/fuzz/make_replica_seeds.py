#!/usr/bin/env python3
"""Writes the seeds of fuzz_replica.

    tests/fuzz/make_replica_seeds.py          (from the source root; tests/fuzz/seeds/fuzz_replica is rewritten)
"""

import pathlib
import shutil
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "seeds" / "fuzz_replica"
BEGIN, ENTRY, END, CONFIRM = range(4)
NODE, FRAME, DROP = range(3)
ACK, PIECE, REQUEST, FORGET = range(4)


def vec(data):
    return struct.pack("<Q", len(data)) + data


def message(kind, body=b"", store=1):
    return struct.pack("<IBQ", 9 + len(body), kind, store) + body


def entry(kind, number=1, data=b"", limit=1 << 20):
    return message(ENTRY, struct.pack("<IBIQ", 13 + len(data), kind, number, limit) + data)


def frame(kind, *numbers, data=b"", node=1):
    body = b"".join(struct.pack("<Q", n) for n in numbers) + data
    return entry(FRAME, node, struct.pack("<IB", len(body), kind) + body)


def node(number):
    return entry(NODE, number, bytes([number]) * 16)


SET, GET = b"\x01" + vec(b"/k") + vec(b"v"), b"\x03" + vec(b"/k")
WAIT = b"\x06" + struct.pack("<Q", 1) + vec(b"/k")
SPACE = b"crunkey1" + struct.pack("<QIH", 7, 1, 3) + b"job"
LIMITS = struct.pack("<7Q", 1000, 1 << 20, 100, 300, 60000, 64, 100000)

SEEDS = {
    "begin": message(BEGIN, LIMITS + bytes(16) + SPACE) + message(END) + message(CONFIRM, struct.pack("<Q", 3)),
    "begin_without_job": message(BEGIN, LIMITS + bytes(16)),
    "requests": node(1) + frame(REQUEST, 1, 0, data=SET) + frame(REQUEST, 2, 0, data=GET) + frame(ACK, 2),
    "pieces": node(1) + frame(PIECE, data=SET[:5]) + frame(REQUEST, 1, 0, data=SET[5:]),
    "a_wait_ends": node(1) + node(2) + frame(REQUEST, 1, 0, data=WAIT) + frame(REQUEST, 1, 0, data=SET, node=2) + entry(DROP, 2),
    "a_node_leaves": node(1) + frame(REQUEST, 1, 0, data=WAIT) + entry(DROP, 1) + frame(FORGET, 1),
    "no_memory_for_it": node(1) + entry(FRAME, 1, struct.pack("<IBQQ", 16 + len(SET), REQUEST, 1, 0) + SET, limit=0),
    "too_many_acknowledged": node(1) + frame(ACK, 5) + frame(REQUEST, 1, 0, data=GET),
    "a_node_that_is_not_there": frame(REQUEST, 1, 0, data=GET, node=3),
    "a_number_that_is_not_the_next": node(2),
    "half_an_entry": node(1)[:-3],
    "an_entry_that_is_too_long": message(ENTRY, bytes(70000)),
}

if FOLDER.exists():
    shutil.rmtree(FOLDER)
FOLDER.mkdir()
for name, content in SEEDS.items():
    (FOLDER / name).write_bytes(content)
