#!/usr/bin/env python3
"""Writes the seeds of fuzz_nccl_ras: answers as versions of NCCL lay them out, and some that it must refuse.

    tests/fuzz/make_ras_seeds.py          (tests/fuzz/seeds/fuzz_nccl_ras is rewritten)
"""

import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT.parent / "support/py"))

import fake_ras as ras  # noqa: E402

FOLDER = ROOT / "seeds/fuzz_nccl_ras"


def ranks(*all_reduces):
    return [ras.rank(i, 70 + i, (1, 0, 3, 0, n)) for i, n in enumerate(all_reduces)]


def main():
    behind = ras.communicator("0xabc", ranks(42, 41, 42))
    silent = ras.communicator("0xabc", ranks(42, 41), [ras.missing(2, 72), ras.missing(3, 73, unresponsive=False)])
    group = ras.communicator("0xdef", [ras.rank(0, 70, (0, 0, 9, 0, 0)), ras.rank(1, 75, (0, 0, 0, 0, 9), "fd00::1")])
    seeds = {
        "text": "ERROR: Unknown command set format json\n" + ras.TEXT,
        "even": "OK\n" + ras.document("2.29.3", [ras.communicator("0x1", ranks(7, 7))]),
        "behind": "OK\n" + ras.document("2.29.3", [behind]),
        "comma": "OK\n" + ras.document("2.28.9", [silent]),
        "groups": "OK\n" + ras.document("2.30.3", [silent, group]),
        "cut": "OK\n" + ras.document("2.29.3", [behind])[:-30],
        "deep": '{"communicators": ' + "[" * 2000,
        "types": '{"communicators": [1, [], {"ranks": {"a": 1}, "missing_ranks": 7}, {"hash": "\\u001b", "ranks": [{"pid": -1e300,'
                 ' "collective_counts": [1, 1e999]}, {"host": 3, "collective_counts": "x"}]}]}',
    }
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, text in seeds.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
