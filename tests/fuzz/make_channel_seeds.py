#!/usr/bin/env python3
"""Writes the seeds of fuzz_channel: what a front and a far end send, and some bytes that end the channel.

    tests/fuzz/make_channel_seeds.py          (tests/fuzz/seeds/fuzz_channel is rewritten)
"""

import hashlib
import pathlib
import shutil
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "seeds/fuzz_channel"
(SECRET, DIRECTORY, VARIABLE, ARGUMENT, START, OPEN, DATA, END, WINDOW, PING, PONG, SIGNAL, NOTE, RESULT) = range(1, 15)


def frame(kind, payload=b"", stream=0):
    return struct.pack("<BBHII", kind, 0, 0, stream, len(payload)) + payload


def window(n, stream):
    return frame(WINDOW, struct.pack("<I", n), stream)


HEADER = frame(SECRET, b"secret") + frame(DIRECTORY, b"/home/u") + frame(VARIABLE, b"A=b") + frame(ARGUMENT, b"x") + frame(START, struct.pack("<II", 30000, 2))
OUTPUT = frame(OPEN, struct.pack("<IIII", 1, 5, 1, 0), 1) + frame(DATA, b"line\n" * 40, 1)
FRONT = [  # read by a far end
    HEADER + frame(DATA, b"typed\n", 1) + frame(END, b"", 1) + frame(PING) + frame(SIGNAL, struct.pack("<I", 15)),
    HEADER + frame(DATA, b"tunnel", 6) + window(1, 6) + frame(END, b"", 6),
    HEADER + frame(DATA, b"x" * 300, 6) * 20 + frame(DATA, b"y", 2),
    HEADER + window(0, 9), HEADER + HEADER, frame(START), HEADER[:-1], frame(SECRET) + frame(VARIABLE, b"=b"),
]
FAR = [  # read by a front
    OUTPUT + frame(END, b"", 1) + frame(PONG) + frame(RESULT, struct.pack("<II", 1, 0)),
    OUTPUT + frame(OPEN, struct.pack("<IIII", 0, 0, 0, 0), 2) + window(1, 2),
    OUTPUT + frame(OPEN, struct.pack("<IIII", 5, 0, 0, 0), 2) + frame(DATA, b"rounds", 2) + frame(END, b"", 2) + window(0, 2),
    *[OUTPUT + frame(OPEN, struct.pack("<IIII", kind, 5, 1, 0), 2) + frame(DATA, b"text", 2) + frame(END, b"", 2) for kind in range(6, 11)],
    OUTPUT + OUTPUT, frame(NOTE, b"the working directory /x: No such file or directory"), frame(NOTE, b"a\0b"), frame(99),
]


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for choices, inputs in ((b"\x01\x03\xff", FRONT), (b"\x00\x02\xfe", FAR)):
        for data in inputs:
            for choice in choices[:1 + 2 * (len(data) > 60)]:
                seed = bytes([choice]) + data
                (FOLDER / hashlib.sha1(seed).hexdigest()[:12]).write_bytes(seed)


if __name__ == "__main__":
    main()
