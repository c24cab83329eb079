#!/usr/bin/env python3
"""Writes the seeds of fuzz_safetensors: small files that reach each part of the reader.

    tests/fuzz/make_safetensors_seeds.py SNAPSHOT     (any small snapshot; becomes a seed too)
"""

import json
import pathlib
import shutil
import struct
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "seeds" / "fuzz_safetensors"


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "empty": ({}, 0),
    "metadata": ({"__metadata__": {"key": "value", "": "", "€": "\"\\\b\f\n\r\t\u0001😀"}}, 0),
    "types": ({"a": tensor("F64", [1], 0, 8), "b": tensor("BF16", [2, 2], 8, 16), "c": tensor("BOOL", [], 16, 17),
               "d": tensor("I8", [0, 5], 17, 17)}, 17),
    "overlap": ({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, 3),
    "overflow": ({"a": tensor("I64", [2**32, 2**32], 0, 0)}, 0),
}

shutil.rmtree(FOLDER, ignore_errors=True)
FOLDER.mkdir(parents=True)
for name, (header, n_bytes) in HEADERS.items():
    text = json.dumps(header, ensure_ascii=name != "metadata").encode()
    (FOLDER / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(n_bytes))
escaped = json.dumps(HEADERS["metadata"][0]).encode()
(FOLDER / "escaped").write_bytes(struct.pack("<Q", len(escaped)) + escaped)
shutil.copy(sys.argv[1], FOLDER / "snapshot")
