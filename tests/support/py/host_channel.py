"""The front's side of `crun --front-channel`, written after proto/PROTOCOL.md ("Channel of a host") alone."""

import collections
import os
import re
import secrets
import select
import socket
import struct
import subprocess
import time

import jobs
import launches

SECRET, DIRECTORY, VARIABLE, ARGUMENT, START, OPEN, DATA, END, WINDOW, PING, PONG, SIGNAL, NOTE, RESULT = range(1, 15)
STDIN, STDOUT, STDERR, AGENT_OUT, AGENT_ERR, CONNECTION, ERROR_FILE, STACKS = range(8)
OUTPUT_WINDOW, CONNECTION_WINDOW, STDIN_WINDOW, PAYLOAD_MAX = 256 << 10, 64 << 10, 64 << 10, 64 << 10
GREETING = re.compile(rb"\nCRUN-CHANNEL 1 (\S+)\n")


def frame(kind, payload=b"", stream=0):
    return struct.pack("<BBHII", kind, 0, 0, stream, len(payload)) + payload


def header(arguments, secret=b"", directory=None, variables=(), shutdown_s=1, n_workers=4):
    """The frames of a whole header."""
    out = frame(SECRET, secret)
    if directory is not None:
        out += frame(DIRECTORY, os.fsencode(directory))
    for text in variables:
        out += frame(VARIABLE, text.encode())
    for text in arguments:
        out += frame(ARGUMENT, str(text).encode())
    return out + frame(START, struct.pack("<II", shutdown_s, n_workers))


class Stream:
    def __init__(self, kind=0, rank=0, local_rank=0, attempt=0):
        self.kind, self.rank, self.local_rank, self.attempt = kind, rank, local_rank, attempt
        self.data, self.n, self.ended, self.granted = bytearray(), 0, False, 0
        self.peer = None  # socket of a connection


class Broken(AssertionError):
    """The far end broke the protocol."""


class Channel:
    """grants: output is granted as it comes. rendezvous: (host, port) for the agent's connections. prefix: words in front of the command."""

    def __init__(self, grants=True, rendezvous=None, environment=None, stderr=subprocess.PIPE, prefix=()):
        self.tag = launches.new_tag()
        self.process = subprocess.Popen([*map(str, prefix), jobs.crun(), "--front-channel"], bufsize=0,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                                        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {}), launches.TAG: self.tag})
        self.grants, self.rendezvous = grants, rendezvous
        self.bytes, self.streams, self.seen = b"", {}, collections.Counter()
        self.notes, self.result, self.ended, self.stdin, self.stdin_window, self.greeting = [], None, False, None, None, None
        self.pinged = time.monotonic()
        self.wait(lambda c: c.greeting)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for s in self.streams.values():
            if s.peer:
                s.peer.close()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()

    def send(self, data):
        """The far end may have closed its input meanwhile, which the end of the channel shows."""
        try:
            while data and not self.process.stdin.closed:
                data = data[os.write(self.process.stdin.fileno(), data):]
        except BrokenPipeError:
            pass

    def start(self, arguments, **more):
        self.send(header(arguments, **more))

    def end_input(self):
        self.process.stdin.close()

    def grant(self, number, n):
        self.streams[number].granted += n
        self.send(frame(WINDOW, struct.pack("<I", n), number))

    def output(self, kind=STDOUT, rank=0, attempt=None):
        return b"".join(bytes(s.data) for s in self.streams.values()
                        if s.kind == kind and (kind > STDERR or s.rank == rank) and attempt in (None, s.attempt))

    def wait(self, holds, timeout=60):
        """Handles frames until holds(self), or the end of the channel."""
        deadline = time.monotonic() + timeout
        while not holds(self) and not self.ended:
            assert time.monotonic() < deadline, (self.seen, self.notes, self.output(AGENT_ERR))
            self._turn(0.2)
        return holds(self)

    def rest(self, timeout=60):
        """To the end of the channel; the exit code of the far end."""
        self.wait(lambda c: False, timeout)
        return self.process.wait(timeout)

    def _turn(self, timeout):
        if time.monotonic() - self.pinged > 1 and self.greeting and not self.process.stdin.closed:
            self.pinged = time.monotonic()
            self.send(frame(PING))
        peers = {s.peer: number for number, s in self.streams.items() if s.peer}
        for ready in select.select([self.process.stdout, *peers], [], [], timeout)[0]:
            if ready is self.process.stdout:
                self._take(os.read(ready.fileno(), 1 << 20))
            else:
                self._carry(peers[ready], ready)

    def _carry(self, number, peer):
        data = peer.recv(4096)  # far below a window
        s = self.streams[number]
        self.send(frame(DATA, data, number) if data else frame(END, b"", number))
        if not data:
            s.peer = None
            peer.close()

    def _take(self, data):
        self.ended = not data
        self.bytes += data
        if not self.greeting:
            found = GREETING.search(self.bytes)
            if found:
                self.greeting, self.bytes = found, self.bytes[found.end():]
            else:
                return
        while len(self.bytes) >= 12:
            kind, zero, zeros, stream, n = struct.unpack_from("<BBHII", self.bytes)
            if zero or zeros or n > PAYLOAD_MAX or not OPEN <= kind <= RESULT or self.result:
                raise Broken((kind, stream, n, self.result))
            if len(self.bytes) < 12 + n:
                return
            payload, self.bytes = self.bytes[12:12 + n], self.bytes[12 + n:]
            self.seen[kind] += 1
            self._handle(kind, stream, payload)

    def _handle(self, kind, stream, payload):
        if kind == OPEN:
            if stream != len(self.streams) + 1:
                raise Broken(("OPEN", stream))
            s = self.streams[stream] = Stream(*struct.unpack("<IIII", payload))
            if s.kind == STDIN:
                self.stdin, self.stdin_window, s.ended = stream, STDIN_WINDOW, True
            elif s.kind == CONNECTION:
                s.peer = socket.create_connection(self.rendezvous)
        elif kind == DATA:
            s = self.streams[stream]
            s.n += len(payload)
            if s.ended or s.n > s.granted + (CONNECTION_WINDOW if s.kind == CONNECTION else OUTPUT_WINDOW):
                raise Broken(("DATA", stream, s.n, s.granted))
            if s.peer:
                s.peer.sendall(payload)
            else:
                s.data += payload
            if self.grants or s.kind == CONNECTION:
                self.grant(stream, len(payload))
        elif kind == END:
            s = self.streams[stream]
            if s.ended:
                raise Broken(("END", stream))
            s.ended = True
            if s.peer:
                s.peer.shutdown(socket.SHUT_WR)
        elif kind == WINDOW and stream == self.stdin:
            self.stdin_window += struct.unpack("<I", payload)[0]
        elif kind == NOTE:
            self.notes.append(payload.decode())
        elif kind == RESULT:
            self.result = struct.unpack("<II", payload)


def hostile(random, n):
    """Bytes in the place of a front's frames: whole frames with changes, and noise."""
    out = bytearray()
    while len(out) < n:
        kind = random.choice([random.randrange(256), random.randrange(SECRET, RESULT + 1), DATA, WINDOW, END])
        payload = random.randbytes(random.choice([0, 1, 2, 4, 4, 5, 13, 100, 5000]))
        piece = bytearray(frame(kind, payload, random.choice([0, 0, 1, 2, 3, 1 << 31])))
        for _ in range(random.choice([0, 0, 1, 3])):
            piece[random.randrange(len(piece))] = random.randrange(256)
        out += piece[:random.randrange(1, len(piece) + 1)] if random.random() < 0.05 else piece
    return bytes(out)


def new_secret():
    return secrets.token_hex(32).encode()
