"""The plugin holds machine code for each GPU generation given, and PTX of the last: gpu_code.py PLUGIN GENERATION...

Looks at the fat binaries in the file. Each begins with the magic number, then u16 version, u16 size of this header,
u64 size of the entries; an entry with u16 kind (1: PTX, 2: machine code), u16, u32 size of its header, u64 size of
what follows it, and its generation as u32 at byte 28.
"""

import struct
import sys

MAGIC, HEADER_SIZE = struct.pack("<I", 0xBA55ED50), 16
PTX, MACHINE_CODE = 1, 2


def entries(data):
    at = 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, header, size = struct.unpack_from("<HHQ", data, at + 4)
        if header != HEADER_SIZE or at + header + size > len(data):
            at += len(MAGIC)
            continue
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, entry_header, payload = struct.unpack_from("<HHIQ", data, entry)
            yield kind, struct.unpack_from("<I", data, entry + 28)[0]
            entry += entry_header + payload


def main():
    generations = list(map(int, sys.argv[2:]))
    found = set(entries(open(sys.argv[1], "rb").read()))
    wanted = {(MACHINE_CODE, g) for g in generations} | {(PTX, generations[-1])}
    print("found:", ", ".join(f"{'PTX' if k == PTX else 'code'} {g}" for k, g in sorted(found)))
    if wanted - found:
        sys.exit(f"missing: {sorted(wanted - found)} of (1: PTX, 2: machine code; generation)")


main()
