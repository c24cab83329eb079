"""Starts crund, and speaks the TCPStore wire to it by hand, for tests that need every byte under control."""

import fcntl
import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time

TCP_ESTABLISHED, TCP_FIN_WAIT1 = 1, 4

OPS = {
    "VALIDATE": 0, "SET": 1, "COMPARE_SET": 2, "GET": 3, "ADD": 4, "CHECK": 5, "WAIT": 6, "GETNUMKEYS": 7,
    "DELETE_KEY": 8, "APPEND": 9, "MULTI_GET": 10, "MULTI_SET": 11, "CANCEL_WAIT": 12, "PING": 13,
    "QUEUE_PUSH": 14, "QUEUE_POP": 15, "QUEUE_LEN": 16, "LIST_KEYS": 17, "BARRIER": 18,
}
VALIDATE = bytes.fromhex("00cef7853c")


class Crund:
    """A running daemon. Use as a context manager; the log is in .log() after it ended, too."""

    def __init__(self, build, *options, listen=("127.0.0.1:0",), preexec_fn=None, env=None, wrapper=()):
        self._log = tempfile.TemporaryFile()
        self._preexec_fn = preexec_fn
        self._env = dict(os.environ, **(env or {}))
        listens = [word for address in listen for word in ("--listen", address)]
        self.command = [*wrapper, str(pathlib.Path(build) / "rendezvous" / "crund"), *listens, *options]
        self.lines = []
        self._n_lines = len(listen) + sum(o.startswith("--listen-unix") for o in options)

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=self._env,
            preexec_fn=self._preexec_fn,
        )
        for _ in range(self._n_lines):
            line = self.process.stdout.readline().strip()
            if not line.startswith("crund: listening on "):
                self.process.wait(60)
                raise AssertionError(f"crund did not start: {line!r} {self.log()}")
            self.lines.append(line)
        last = self.lines[0].rsplit(":", 1)[1]
        self.port = int(last) if last.isdigit() else None
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self.process.stdout.close()
        return False

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        # Not read(): that would move the offset, which the daemon shares.
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def stop(self, timeout=60):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def rss_kib(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise AssertionError("crund is gone")

    def cpu_s(self):
        return int(pathlib.Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def client(self, **kwargs):
        return Client("127.0.0.1", self.port, **kwargs)


def vec(value):
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def message(op, *fields):
    """One request. Fields: bytes and str become vectors, int an i64, a list its count and its items."""
    out = bytes([OPS[op]])
    for f in fields:
        if isinstance(f, int):
            out += struct.pack("<I" if op in ("PING", "VALIDATE") else "<q", f)
        elif isinstance(f, (list, tuple)):
            out += struct.pack("<Q", len(f)) + b"".join(vec(i) for i in f)
        else:
            out += vec(f)
    return out


def multi_set(pairs):
    return bytes([OPS["MULTI_SET"]]) + struct.pack("<Q", len(pairs)) + b"".join(vec(k) + vec(v) for k, v in pairs)


class Closed(Exception):
    """The server ended the connection."""


class Stream:
    """A socket whose end is the exception Closed, however it ends."""

    socket = None

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as e:
            raise Closed from e

    def read(self, n):
        out = b""
        while len(out) < n:
            try:
                piece = self.socket.recv(n - len(out))
            except ConnectionResetError as e:
                raise Closed from e
            if not piece:
                raise Closed
            out += piece
        return out


class Client(Stream):
    """A validated connection, unless told otherwise."""

    def __init__(self, host, port, validate=True, timeout=60, path=None, rcvbuf=None, source=None):
        if path:
            self.socket = socket.socket(socket.AF_UNIX)
        else:
            self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if rcvbuf:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        if source:
            self.socket.bind((source, 0))
        self.socket.settimeout(timeout)
        self.socket.connect(path or (host, port))
        if validate:
            self.send(VALIDATE)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
        return False

    def close(self):
        self.socket.close()

    def read_vec(self):
        return self.read(struct.unpack("<Q", self.read(8))[0])

    def read_i64(self):
        return struct.unpack("<q", self.read(8))[0]

    def arrive(self, within=60):
        """Waits until all that was sent over TCP is where the server can read it, or the connection is over. The
        kernel may take its time on a busy machine, even over loopback."""
        deadline = time.monotonic() + within
        while struct.unpack("i", fcntl.ioctl(self.socket.fileno(), termios.TIOCOUTQ, bytes(4)))[0] > 0:
            if self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in (TCP_ESTABLISHED, TCP_FIN_WAIT1):
                return
            assert time.monotonic() < deadline, "the server does not read"
            time.sleep(0.001)

    def ping(self, nonce=7):
        self.send(message("PING", nonce))
        return struct.unpack("<I", self.read(4))[0] == nonce

    def set(self, key, value):
        self.send(message("SET", key, value))

    def get(self, key):
        self.send(message("GET", key))
        return self.read_vec()

    def add(self, key, n):
        self.send(message("ADD", key, n))
        return self.read_i64()

    def compare_set(self, key, expected, desired):
        self.send(message("COMPARE_SET", key, expected, desired))
        return self.read_vec()

    def count(self):
        self.send(message("GETNUMKEYS"))
        return self.read_i64()

    def check(self, *keys):
        self.send(message("CHECK", keys))
        return self.read(1) == b"\0"

    def is_closed(self, within=60):
        """Waits until the server closes; whatever it still sends is dropped."""
        self.socket.settimeout(within)
        try:
            while self.socket.recv(65536):
                pass
            return True
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
