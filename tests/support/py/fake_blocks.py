"""crun's side of CRUN_BLOCKS_FD (proto/state_blocks.h) in Python, for tests of crun_launch.checkpoint without crun: decides, answers, and
damages blocks on purpose."""

import array
import errno
import fcntl
import os
import pathlib
import socket
import struct
import threading
import zlib

TABLE_AT, SLOT_SIZE, HELD_AT = 131072, 64, 48
SLOT = struct.Struct("<QIIQQIIIII12x")
RECORD = struct.Struct("<IIIIQIIQIIII8x")
FILE = struct.Struct("<QQ48s")
SIZE, WHOLE, STEP, BLOCK, VERDICT, FOLDER, REJECT, SAVED, HELLO = range(1, 10)
MEMORY, PEER = 1, 2
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Slot:
    def __init__(self, fd, index):
        self.fd, self.at = fd, TABLE_AT + 16 + index * SLOT_SIZE
        (self.number, self.rank, self.generation, self.offset, self.bytes, self.checksum, self.kind, self.world_size, self.content,
         self.held) = SLOT.unpack(os.pread(fd, SLOT_SIZE, self.at))

    def data(self):
        return os.pread(self.fd, self.bytes, self.offset)

    def is_whole(self, data):
        return len(data) == self.bytes and zlib.crc32(data) == self.checksum

    def hold(self, n):
        os.pwrite(self.fd, struct.pack("<I", n), self.at + HELD_AT)

    def put(self, name, value):
        """Changes a field behind the worker's back."""
        at, form = {"number": (0, "<Q"), "rank": (8, "<I"), "generation": (12, "<I"), "checksum": (32, "<I")}[name]
        os.pwrite(self.fd, struct.pack(form, value), self.at + at)
        os.pwrite(self.fd, struct.pack("<I", zlib.crc32(os.pread(self.fd, HELD_AT, self.at))), self.at + HELD_AT + 4)


def slots(fd):
    head = os.pread(fd, 16, TABLE_AT)
    return [Slot(fd, i) for i in range(struct.unpack_from("<I", head, 8)[0])] if head[:8] == b"CRUNBLK1" else []


def files(block):
    """The files in a block, by name."""
    assert block[:8] == b"CRUNFIL1"
    found = {}
    for i in range(struct.unpack_from("<I", block, 8)[0]):
        offset, size, name = FILE.unpack_from(block, 16 + i * FILE.size)
        assert offset % 64 == 0 and offset + size <= len(block)
        found[name.rstrip(b"\0").decode()] = block[offset:offset + size]
    return found


class FakeCrun:
    """n_ranks: workers of a generation, all of this node. copies: each whole block is copied to another "node"."""

    def __init__(self, n_ranks, n_slots=2, copies=False, state_fds=None):
        self.n_ranks, self.n_slots, self.copies = n_ranks, n_slots, {} if copies else None
        self.state_fds = state_fds or [os.memfd_create(f"state-{r}", os.MFD_ALLOW_SEALING) for r in range(n_ranks)]
        self.service, self.workers_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.changed = threading.Condition()
        self.limit = 1 << 40           # bytes that a state file may have
        self.rejected = {}             # generation: step from which its states are bad
        self.folder = None             # (path, every)
        self.spoil = None              # function of the bytes of an answer to BLOCK: damage on the way
        self.bad = set()               # (rank, step, generation) without a whole copy
        self.damaged = []              # (rank, step, tier) found by crun
        self.asked = []                # (kind, rank)
        self.connections = []
        self.generation, self.chosen = -1, (0, -1)
        self.waiting = {}              # kind: {rank: status}
        self.answers = {}              # kind: [number of answers, answer]
        threading.Thread(target=self._serve, daemon=True).start()

    def environment(self, local_rank):
        return {"CRUN_BLOCKS_FD": str(self.workers_end.fileno()), "CRUN_STATE_FD": str(self.state_fds[local_rank])}

    def fds(self):
        return [self.workers_end.fileno(), *self.state_fds]

    def close(self):
        self.service.shutdown(socket.SHUT_RDWR)
        for s in (*self.connections, self.workers_end):
            s.close()
        for fd in self.state_fds:
            os.close(fd)

    # -- what tests look at and change

    def slot(self, rank, step, generation=None):
        found = [s for fd in self.state_fds for s in slots(fd) if s.number == step + 1 and s.rank == rank
                 and generation in (None, s.generation)]
        return max(found, key=lambda s: s.generation, default=None)

    def wait_for_copy(self, rank, step):
        with self.changed:
            assert self.changed.wait_for(lambda: (rank, step) in self.copies, 30) if self.copies is not None else True

    def flip(self, slot, at, bit=0):
        """One bit of a block."""
        at += slot.offset
        os.pwrite(slot.fd, bytes([os.pread(slot.fd, 1, at)[0] ^ 1 << bit]), at)

    def states(self):
        """(generation, step): world size, of the states of which each rank is whole somewhere: written in one generation."""
        found = {}
        for fd in self.state_fds:
            for s in slots(fd):
                if s.number and s.number - 1 < self.rejected.get(s.generation, 1 << 60):
                    found.setdefault((s.generation, s.number - 1, s.world_size), set()).add(s.rank)
        for (rank, step), (_, _, world_size, generation) in (self.copies or {}).items():
            found.setdefault((generation, step, world_size), set()).add(rank)
        return {(generation, step): size for (generation, step, size), ranks in found.items() if len(ranks) == size
                and not any((r, step, generation) in self.bad for r in ranks)}

    def steps(self):
        return {step: size for (_, step), size in self.states().items()}

    def write_folder(self, folder, step):
        """What crun's thread does: the files of all blocks of a step, under their names."""
        path = pathlib.Path(folder, f"step-{step}")
        path.mkdir(parents=True)
        for rank in range(self.steps()[step]):
            for name, data in files(self.slot(rank, step).data()).items():
                (path / name).write_bytes(data)
        return path

    # -- the service

    def _serve(self):
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.service, 4096, 1)
            except OSError:
                return
            if not fds:
                return
            s = socket.socket(fileno=fds[0])
            self.connections.append(s)
            _, kind, _, _, _, rank, generation, *_, local_rank = RECORD.unpack_from(data)
            with self.changed:
                if generation > self.generation:
                    self.generation, self.waiting, self.answers = generation, {}, {}
                    self.changed.notify_all()
            threading.Thread(target=self._answer_all, args=(s, rank, generation, local_rank), daemon=True).start()

    def _answer_all(self, s, rank, generation, local_rank):
        with s:
            while True:
                try:
                    data = s.recv(4096)
                except OSError:
                    return
                if not data:
                    return
                _, kind, ident, status, step, of_rank, of_generation, size, _, _, _, arg = RECORD.unpack_from(data)
                self.asked.append((kind, rank))
                text = data[RECORD.size:].decode()
                fd, fields = None, None
                if kind == SIZE:
                    fields = self._size(self.state_fds[local_rank], size)
                elif kind == WHOLE and self.copies is not None:
                    self._copy(of_rank, step)
                elif kind == STEP:
                    fields = self._together(STEP, rank, generation, 0, self._choose)
                elif kind == VERDICT:
                    if status:
                        self.bad.add((of_rank, step, self.chosen[0]))
                    fields = self._together(VERDICT, rank, generation, status, self._choose)
                elif kind == BLOCK:
                    fd, fields = self._block(of_rank, step, of_generation, arg)
                elif kind == FOLDER:
                    self.folder = text, arg
                elif kind == REJECT:
                    for g in range(generation):
                        self.rejected[g] = min(self.rejected.get(g, step), step)
                    fields = {}
                if fields is not None:
                    self._send(s, kind, ident, fd, **fields)

    def _send(self, s, kind, ident, fd, status=0, step=0, rank=0, generation=0, bytes=0, checksum=0, checksum_kind=0, tier=0, arg=0):
        record = RECORD.pack(RECORD.size, kind, ident, status, step, rank, generation, bytes, checksum, checksum_kind, tier, arg)
        try:
            s.sendmsg([record], [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        except OSError:
            pass
        if fd is not None:
            os.close(fd)

    def _size(self, fd, size):
        if size > self.limit:
            return {"status": errno.ENOMEM, "arg": self.limit >> 20}
        if size > os.fstat(fd).st_size:
            os.ftruncate(fd, size)
            try:
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            except PermissionError:
                pass     # a file of a crun that does not make it sealable
        return {"arg": self.n_slots}

    def _copy(self, rank, step):
        slot = self.slot(rank, step)
        if slot:
            with self.changed:
                self.copies[rank, step] = slot.data(), slot.checksum, slot.world_size, slot.generation
                self.changed.notify_all()
        for key in [k for k in self.copies if k[0] == rank and k[1] < step - 1]:
            del self.copies[key]

    def _choose(self):
        states = self.states()
        self.chosen = max(states, default=(0, -1))
        return {"bytes": self.chosen[1] + 1, "arg": states.get(self.chosen, 0), "generation": self.chosen[0]}

    def _together(self, kind, rank, generation, status, decide):
        """Waits until all ranks of the generation have asked; one of them decides for all."""
        with self.changed:
            self.waiting.setdefault(kind, {})[rank] = status
            n, _ = self.answers.setdefault(kind, [0, None])
            if len(self.waiting[kind]) == self.n_ranks:
                answer, is_final = decide(), kind == VERDICT and not any(self.waiting[kind].values())
                answer["status"] = errno.EAGAIN if answer["bytes"] and not is_final else 0
                self.waiting[kind] = {}
                self.answers[kind] = [n + 1, answer]
                self.changed.notify_all()
            self.changed.wait_for(lambda: self.generation != generation or self.answers[kind][0] > n, 60)
            if self.generation != generation:
                return None
            return self.answers[kind][1]

    def _block(self, rank, step, generation, is_not_own):
        found = []
        slot = self.slot(rank, step, generation)
        if slot and not is_not_own:
            found.append((MEMORY, slot.data(), slot.checksum))
        copy = (self.copies or {}).get((rank, step))
        if copy and copy[3] == generation:
            found.append((PEER, *copy[:2]))
        for tier, data, checksum in found:
            if zlib.crc32(data) != checksum:
                self.damaged.append((rank, step, tier))
                continue
            fd = os.memfd_create("block", os.MFD_ALLOW_SEALING)
            os.write(fd, self.spoil(data) if self.spoil else data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
            return fd, {"bytes": len(data), "checksum": checksum, "checksum_kind": 1, "tier": tier, "rank": rank, "step": step,
                        "generation": generation}
        return None, {"status": errno.ENOENT}
