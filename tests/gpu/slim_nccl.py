#!/usr/bin/env python3
"""A libnccl.so.2 for one GPU architecture, which compresses well enough to be carried to a borrowed machine.

    tests/gpu/slim_nccl.py SOURCE TARGET [ARCHITECTURE]

SOURCE is the library or the wheel that holds it (pip download --no-deps nvidia-nccl-cu12). ARCHITECTURE is the compute
capability times ten, 90 (H100, H200) unless named. `tests/gpu/run prepare --nccl SOURCE` does the same.

The device code lies in the library's data as fat binaries: a header and entries, each the program for one
architecture, or its PTX. All payloads but the wanted ones become zeros, which compress to nothing; no offset changes,
so the library itself is as it was. On another architecture its kernels cannot be found."""

import pathlib
import struct
import sys
import zipfile

MAGIC = struct.pack("<I", 0xBA55ED50)
BINARY = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes behind it
ENTRY = struct.Struct("<HHIQ")   # kind, version, bytes of this header, bytes of the payload
ARCHITECTURE_AT = 28             # in the header of an entry
MACHINE_CODE = 2


def payloads(blob):
    """(first byte, bytes, architecture; None: not machine code) of each entry of each fat binary."""
    at = blob.find(MAGIC)
    while at >= 0:
        _, version, header, size = BINARY.unpack_from(blob, at)
        end = at + header + size
        if version != 1 or header != BINARY.size or end > len(blob):
            at = blob.find(MAGIC, at + 1)  # these four bytes in something else
            continue
        at += header
        while at < end:
            kind, _, header, size = ENTRY.unpack_from(blob, at)
            if header < ARCHITECTURE_AT + 4 or at + header + size > end:
                raise ValueError(f"the fat binary that ends at {end} has no entry at {at}")
            architecture, = struct.unpack_from("<I", blob, at + ARCHITECTURE_AT)
            yield at + header, size, architecture if kind == MACHINE_CODE else None
            at += header + size
        at = blob.find(MAGIC, end)


def slim(library, architecture):
    """The library with nothing but the machine code for one architecture, and how many bytes that is."""
    blob, kept = bytearray(library), 0
    for begin, size, of in payloads(blob):
        if of == architecture:
            kept += size
        else:
            blob[begin:begin + size] = bytes(size)
    if not kept:
        raise ValueError(f"no machine code for architecture {architecture}")
    return bytes(blob), kept


def read_library(path):
    if not zipfile.is_zipfile(path):
        return path.read_bytes()
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith("/libnccl.so.2")]
        if not names:
            raise ValueError(f"{path} holds no libnccl.so.2")
        return wheel.read(names[0])


def write(source, target, architecture=90):
    blob, kept = slim(read_library(source), architecture)
    target.write_bytes(blob)
    return len(blob), kept


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    target = pathlib.Path(sys.argv[2])
    try:
        size, kept = write(pathlib.Path(sys.argv[1]), target, *map(int, sys.argv[3:]))
    except (OSError, ValueError) as e:
        sys.exit(f"slim_nccl.py: {e}")
    print(f"{target}: {kept / 2**20:.0f} MiB of machine code among {size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
