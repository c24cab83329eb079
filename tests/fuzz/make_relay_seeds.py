#!/usr/bin/env python3
"""Writes the seeds of fuzz_relay.

    tests/fuzz/make_relay_seeds.py          (from the source root; tests/fuzz/seeds/fuzz_relay is rewritten)
"""

import pathlib
import shutil
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "seeds" / "fuzz_relay"
RECEIVE, REQUEST, CUT, CLOSE = 0x00, 0x40, 0x80, 0xC0
PIECE, LAST, FORGET, GIVEN_UP, REPLY_PIECE, REPLY, PROMISED, FAILED = range(1, 9)
SERVER, NODE = 0, 1


def vec(data):
    return struct.pack("<Q", len(data)) + data


def record(action, content=b""):
    return bytes([action, len(content)]) + content


def frame(kind, *numbers, data=b""):
    body = b"".join(struct.pack("<Q", n) for n in numbers) + data
    return struct.pack("<IB", len(body), kind) + body


SET, GET, ADD = b"\x01" + vec(b"/k") + vec(b"v"), b"\x03" + vec(b"/k"), b"\x04" + vec(b"/n") + struct.pack("<q", 2)
WAIT = b"\x06" + struct.pack("<Q", 1) + vec(b"/q")
PUSH, POP, CANCEL = b"\x0e" + vec(b"/q") + vec(b"item"), b"\x0f" + vec(b"/q"), b"\x0c"
PROMISE = 1 << 63


def requests(*messages, first=1):
    return b"".join(record(RECEIVE, frame(LAST, first + i, 0, data=m)) for i, m in enumerate(messages))


SEEDS = {
    "server-plain": [SERVER, requests(SET, GET, ADD, ADD)],
    "server-promise": [SERVER, requests(WAIT, PUSH) + record(RECEIVE, frame(LAST, 3, PROMISE + 1, data=POP))],
    "server-leaves": [SERVER, requests(WAIT) + record(RECEIVE | 1, frame(LAST, 1, 0, data=WAIT)) + requests(PUSH, first=2) +
                      record(CLOSE) + record(CLOSE | 1)],
    "server-forgets": [SERVER, requests(WAIT) + record(RECEIVE, frame(FORGET, 1)) + requests(PUSH, first=2)],
    "server-pieces": [SERVER, record(RECEIVE, frame(PIECE, data=SET[:5])) + record(CUT, b"\0") +
                      record(RECEIVE, frame(LAST, 1, 0, data=SET[5:])) + record(RECEIVE, frame(PIECE, data=SET[:5])) +
                      record(RECEIVE, frame(GIVEN_UP)) + requests(GET, first=2)],
    "server-cut": [SERVER, record(RECEIVE, frame(LAST, 1, 0, data=GET)[:9]) + record(CUT, b"\0") + requests(GET) +
                   record(CUT, b"\1") + record(CUT, b"\7")],
    "node-add": [NODE, record(REQUEST, ADD) + record(REQUEST | 1, ADD) + record(REQUEST | 2, ADD) +
                 record(RECEIVE, frame(REPLY, 1, 2)) + record(CLOSE | 1) + record(RECEIVE, frame(REPLY, 2, 6))],
    "node-add-fails": [NODE, record(REQUEST, ADD) + record(REQUEST | 1, ADD) +
                       record(RECEIVE, frame(FAILED, 1, data=struct.pack("<I", 1))) +
                       record(RECEIVE, frame(FAILED, 2, data=struct.pack("<I", 1)))],
    "node-wait": [NODE, record(REQUEST, WAIT) + record(REQUEST | 1, WAIT) + record(RECEIVE, frame(PROMISED, 1, PROMISE + 1)) +
                  record(REQUEST, POP) + record(REQUEST | 1, CANCEL) + record(RECEIVE, frame(PROMISED, 1, PROMISE + 2))],
    "node-reply": [NODE, record(REQUEST, GET) + record(RECEIVE, frame(REPLY_PIECE, 1, data=b"\1\0\0")) + record(CUT, b"\1") +
                   record(RECEIVE, frame(REPLY, 1, data=b"\0\0\0\0\0v"))],
}


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, (end, content) in SEEDS.items():
        (FOLDER / name).write_bytes(bytes([end]) + content)


if __name__ == "__main__":
    main()
