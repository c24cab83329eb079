#!/usr/bin/env python3
"""Writes the seeds of fuzz_state_blocks."""

import pathlib
import struct
import zlib

FOLDER = pathlib.Path(__file__).parent / "seeds/fuzz_state_blocks"


def slot(number, offset, n_bytes):
    head = struct.pack("<QIIQQIIII", number, 1, 2, offset, n_bytes, 0x1234, 1, 4, 1)
    return head + struct.pack("<II8x", 0, zlib.crc32(head))


def main():
    FOLDER.mkdir(exist_ok=True)
    size = struct.pack("<Q", 4 << 20)
    table = struct.pack("<8sII", b"CRUNBLK1", 3, 0) + slot(8, 1 << 20, 5000) + slot(9, 2 << 20, 5000) + slot(0, 0, 0)
    files = struct.pack("<8sII", b"CRUNFIL1", 2, 0)
    for name, offset in ((b"__0_0.distcp", 192), (b".metadata", 1024)):
        files += struct.pack("<QQ48s", offset, 100, name)
    text = b"/scratch/saves"
    record = struct.pack("<IIIIQIIQIIII8x", 64 + len(text), 6, 1, 0, 7, 1, 2, 100, 5, 1, 1, 10) + text
    have = (b'{"relay":0,"generation":2,"blocks":{"kind":"have","node":1,"good":true,"runs":['
            b'{"step":41,"generation":1,"world":8,"first":4,"n":4,"tier":1},{"step":40,"generation":1,"world":8,"first":4,"n":4,"tier":1}]}}')
    choice = b'{"relay":-1,"generation":2,"blocks":{"kind":"choice","exists":true,"step":41,"of":1,"world":8}}'
    for name, kind, body in (("table", 0, table), ("files", 1, files), ("record", 2, record), ("have", 3, have), ("choice", 3, choice)):
        (FOLDER / name).write_bytes(bytes([kind]) + size + body)


main()
