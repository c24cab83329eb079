#!/usr/bin/env python3
"""Writes the seeds of fuzz_replica.

    tests/fuzz/make_replica_seeds.py          (from the source root; tests/fuzz/seeds/fuzz_replica is rewritten)
"""

import pathlib
import shutil
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "seeds" / "fuzz_replica"
BEGIN, ENTRY, END, CONFIRM, COPY, STATE = range(6)
HEAD, STATE_NODE, NO_NODE, BYTES, STATE_WAIT, NAME, VALUE, PART, ITEM, LINKS, PROMISE, STATE_END = range(12)
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


def record(kind, *numbers, data=b"", form=None):
    body = struct.pack("<" + (form or "Q" * len(numbers)), *numbers) + data
    return struct.pack("<BI", kind, len(body)) + body


def state_node(number, unacked=b"", n_unacked=0, message=b"", promises=0):
    return record(STATE_NODE, data=bytes([number]) * 16 + struct.pack("<7Q", 1, 5, 5 + n_unacked, 7, promises, len(unacked), len(message))) + b"".join(
        record(BYTES, data=part) for part in (unacked, message) if part)


def wait(number, room, links, waits=1):
    return record(STATE_WAIT, number, room, links, waits, form="3QB")


def name(key, *records, promised=0):
    return record(NAME, len(key), promised, form="IB") + (record(BYTES, data=key) if key else b"") + b"".join(records)


def value(born, capacity, data):
    return record(VALUE, born, capacity, len(data), form="QII") + (record(BYTES, data=data) if data else b"")


def blob(kind, capacity, data):
    return record(kind, capacity, len(data), form="II") + record(BYTES, data=data)


def state(*records):
    return message(STATE, b"".join(records))


# What the store charges for (64 bits): a name, a blob, a wait and each of its links.
NAME_COST, BLOB_COST, WAIT_COST, LINK_COST = 136, 48, 48, 40

SET, GET = b"\x01" + vec(b"/k") + vec(b"v"), b"\x03" + vec(b"/k")
WAIT = b"\x06" + struct.pack("<Q", 1) + vec(b"/k")
REPLY = struct.pack("<IBQ", 8, 6, 1)
WHOLE = (
    record(HEAD, 3, 9),
    state_node(1, unacked=REPLY, n_unacked=1, message=SET[:5], promises=1),
    wait(1, 3, 2), wait((1 << 63) + 1, 0, 0, waits=0),
    record(NO_NODE),
    state_node(2), wait(4, 1, 1),
    name(b"/k", value(2, 24, b"v"), blob(PART, 30, b"part")),
    name(b"/l", value(5, 24, b"")),
    name(b"/q", blob(ITEM, 24, b"item"), record(LINKS, 0, 1, 7, 2, 0, 8, form="IIQIIQ"), promised=1),
    record(PROMISE, 1, 0, form="II"),
    record(STATE_END, 2, 2, 3 * (NAME_COST + 2) + 4 * BLOB_COST + 24 * 3 + 30 + 2 * WAIT_COST + 4 * LINK_COST),
)
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
    "copy": message(COPY, LIMITS + bytes(16) + SPACE) + state(*WHOLE),
    "a_state_and_entries": state(*WHOLE) + frame(REQUEST, 1, 0, data=SET[5:]) + frame(FORGET, (1 << 63) + 1) + node(4)
    + frame(REQUEST, 1, 0, data=SET, node=4) + entry(DROP, 3),
    "a_state_in_pieces": b"".join(state(r) for r in WHOLE) + frame(ACK, 6),
    "an_entry_within_a_state": state(*WHOLE[:4]) + node(3),
    "a_state_after_entries": node(1) + state(*WHOLE),
    "a_state_with_other_sums": state(*WHOLE[:-1], record(STATE_END, 2, 2, 1)),
    "half_an_entry": node(1)[:-3],
    "an_entry_that_is_too_long": message(ENTRY, bytes(70000)),
}

if FOLDER.exists():
    shutil.rmtree(FOLDER)
FOLDER.mkdir()
for name, content in SEEDS.items():
    (FOLDER / name).write_bytes(content)
