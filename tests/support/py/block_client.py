"""The worker's side of blocks of state (proto/state_blocks.h), written from the header alone: for tests of crun's side."""

import errno
import os
import socket
import struct
import zlib

SIZE, WHOLE, STEP, BLOCK, VERDICT, FOLDER, REJECT, SAVED, HELLO = range(1, 10)
TABLE_AT, BLOCKS_AT, SLOT_SIZE, PAGE = 131072, 1 << 20, 64, 4096
CRC32 = 1
_RECORD = struct.Struct("<IIIIQIIQIIII8x")
_SLOT = struct.Struct("<QIIQQIIIII12x")


def files(**named):
    """A block with these files."""
    head, body = b"", b""
    begin = (16 + 64 * len(named) + 63) // 64 * 64
    for name, data in named.items():
        head += struct.pack("<QQ48s", begin + len(body), len(data), name.encode())
        body += data + bytes(-len(data) % 64)
    return (struct.pack("<8sII", b"CRUNFIL1", len(named), 0) + head).ljust(begin, b"\0") + body


class Answer:
    def __init__(self, fields, fd):
        (_, self.kind, self.id, self.status, self.step, self.rank, self.generation, self.bytes, self.checksum, self.checksum_kind,
         self.tier, self.arg) = fields
        self.fd = fd


class Client:
    """.rank, .world, .generation of the environment. n_bytes: of each block of this rank."""

    def __init__(self, n_bytes, environment=os.environ):
        self.rank, self.world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        self.generation, self.local_rank = int(environment["CRUN_GENERATION"]), int(environment["LOCAL_RANK"])
        self.file, self.n_bytes = int(environment["CRUN_STATE_FD"]), n_bytes
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        door = socket.socket(fileno=os.dup(int(environment["CRUN_BLOCKS_FD"])))
        socket.send_fds(door, [self.record(HELLO, arg=self.local_rank, rank=self.rank, generation=self.generation)], [other.fileno()])
        other.close()
        self.ids, self.saved = 0, []

    def record(self, kind, ident=0, status=0, step=0, rank=0, generation=0, n_bytes=0, arg=0, text=b""):
        return _RECORD.pack(_RECORD.size + len(text), kind, ident, status, step, rank, generation, n_bytes, 0, 0, 0, arg) + text

    def send(self, kind, **fields):
        self.ids += 1
        self.socket.sendall(self.record(kind, self.ids, **fields))

    def ask(self, kind, **fields):
        self.send(kind, **fields)
        self.socket.settimeout(60)
        while True:
            data, fds, _, _ = socket.recv_fds(self.socket, 8192, 1)
            assert len(data) >= _RECORD.size, "crun has closed the socket"
            answer = Answer(_RECORD.unpack_from(data), fds[0] if fds else -1)
            if answer.kind != SAVED:
                break
            self.saved.append(answer.step)
        assert (answer.kind, answer.id) == (kind, self.ids), data
        return answer

    def make_table(self):
        """Asks for the size, and writes the table if there is none yet."""
        self.slot_bytes = (self.n_bytes + PAGE - 1) // PAGE * PAGE
        answer = self.ask(SIZE, n_bytes=BLOCKS_AT + 3 * self.slot_bytes)
        assert answer.status == 0, errno.errorcode[answer.status]
        self.n_slots = answer.arg
        if os.pread(self.file, 8, TABLE_AT) != b"CRUNBLK1":
            os.pwrite(self.file, struct.pack("<8sII", b"CRUNBLK1", self.n_slots, 0), TABLE_AT)

    def at(self, slot):
        return TABLE_AT + 16 + slot * SLOT_SIZE

    def slots(self):
        return [_SLOT.unpack(os.pread(self.file, SLOT_SIZE, self.at(slot))) for slot in range(self.n_slots)]

    def put(self, step, data):
        """Writes a block; False: all slots that may be written have readers."""
        order = sorted(range(self.n_slots), key=lambda slot: self.slots()[slot][0])
        for slot in order[:-1]:  # never the newest one
            before = os.pread(self.file, 8, self.at(slot))
            os.pwrite(self.file, bytes(8), self.at(slot))
            if struct.unpack("<I", os.pread(self.file, 4, self.at(slot) + 48))[0]:
                os.pwrite(self.file, before, self.at(slot))
                continue
            offset = BLOCKS_AT + slot * self.slot_bytes
            os.pwrite(self.file, data, offset)
            fields = _SLOT.pack(step + 1, self.rank, self.generation, offset, len(data), zlib.crc32(data), CRC32, self.world, 1, 0)
            os.pwrite(self.file, fields[8:48], self.at(slot) + 8)
            os.pwrite(self.file, struct.pack("<I", zlib.crc32(fields[:48])), self.at(slot) + 52)
            os.pwrite(self.file, fields[:8], self.at(slot))
            self.send(WHOLE, step=step, rank=self.rank, arg=slot)
            return True
        return False

    def clear_above(self, step):
        """A worker that goes back to a step drops what is newer."""
        for slot, fields in enumerate(self.slots()):
            if fields[0] > step + 1:
                os.pwrite(self.file, bytes(8), self.at(slot))

    def own(self, step):
        """The own block, or None: it is not here, or damaged."""
        for number, rank, _, offset, n, checksum, *_ in self.slots():
            if (number, rank) == (step + 1, self.rank):
                data = os.pread(self.file, n, offset)
                return data if zlib.crc32(data) == checksum else None
        return None

    def block(self, rank, step, **fields):
        """The block of any rank from crun, or None."""
        answer = self.ask(BLOCK, rank=rank, step=step, **fields)
        if answer.status:
            return None
        data = os.pread(answer.fd, answer.bytes, 0)
        os.close(answer.fd)
        assert zlib.crc32(data) == answer.checksum
        return data
