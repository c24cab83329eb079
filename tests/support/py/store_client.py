"""Our blocking store client in a process of its own, driven line by line (tests/interop/store_client.c).

    client = StoreClient(build, "127.0.0.1", port)
    client.set(b"k", b"v")
    assert client.get(b"k", 1000) == b"v"

A failed call raises StoreError with the result's name ("TIMEOUT", "CLOSED", ...). Every answer is waited for
at most `patience` seconds, so that a client that hangs fails its test.
"""

import queue
import signal
import subprocess
import threading
import zlib


class StoreError(Exception):
    def __init__(self, name, sentence):
        super().__init__(f"{name}: {sentence}")
        self.name = name
        self.sentence = sentence


class Digest:
    """A long value is answered with its size and checksum only."""

    def __init__(self, word):
        checksum, size = word[3:].split("*")
        self.checksum, self.size = int(checksum, 16), int(size)

    def __eq__(self, value):
        return self.size == len(value) and self.checksum == zlib.crc32(value)

    def __repr__(self):
        return f"<{self.size} bytes, crc {self.checksum:08x}>"


def encode(data):
    if len(data) > 64 and data.count(data[:1]) == len(data):
        return f"x{data[0]:02x}*{len(data)}"
    return data.hex() or "-"


def decode(word):
    if word == "-":
        return b""
    return Digest(word) if word.startswith("crc") else bytes.fromhex(word)


class StoreClient:
    def __init__(self, build, host, port, connect_timeout_ms=60000, patience=90):
        self.patience = patience
        self.answers = queue.Queue()
        self.process = subprocess.Popen(
            [build / "tests/interop/crw-store-client", host, str(port), str(connect_timeout_ms)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.answer()
        except BaseException:
            self.close()
            raise

    def _read(self):
        for line in self.process.stdout:
            self.answers.put(line.rstrip("\n"))
        self.answers.put("error GONE the client program has ended")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def say(self, *words):
        """Begins a call; answer() is its end."""
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()

    def answer(self):
        try:
            words = self.answers.get(timeout=self.patience).split(" ")
        except queue.Empty:
            raise TimeoutError(f"no answer in {self.patience} s") from None
        if words[0] == "error":
            raise StoreError(words[1], " ".join(words[2:]))
        return words[1:]

    def ask(self, *words):
        self.say(*words)
        return self.answer()

    def interrupt(self):
        """Breaks off the call that waits."""
        self.process.send_signal(signal.SIGUSR1)

    def ping(self):
        self.ask("ping")

    def timeout(self, timeout_ms):
        self.ask("timeout", timeout_ms)

    def join(self):
        return int(self.ask("join")[0])

    def set(self, key, value):
        self.ask("set", encode(key), encode(value))

    def append(self, key, value):
        self.ask("append", encode(key), encode(value))

    def get(self, key, timeout_ms):
        return decode(self.ask("get", timeout_ms, encode(key))[0])

    def add(self, key, amount):
        return int(self.ask("add", encode(key), amount)[0])

    def check(self, *keys):
        return self.ask("check", *map(encode, keys)) == ["1"]

    def wait(self, keys, timeout_ms):
        self.ask("wait", timeout_ms, *map(encode, keys))

    def compare_set(self, key, expected, desired):
        return decode(self.ask("compare_set", encode(key), encode(expected), encode(desired))[0])

    def delete(self, key):
        return self.ask("delete", encode(key)) == ["1"]

    def multi_get(self, keys, timeout_ms):
        return [decode(word) for word in self.ask("multi_get", timeout_ms, *map(encode, keys))]

    def multi_set(self, pairs):
        self.ask("multi_set", *(encode(part) for pair in pairs.items() for part in pair))

    def num_keys(self):
        return int(self.ask("num_keys")[0])

    def list_keys(self):
        return {decode(word) for word in self.ask("list_keys")}

    def queue_push(self, key, value):
        self.ask("queue_push", encode(key), encode(value))

    def queue_pop(self, key, timeout_ms):
        return decode(self.ask("queue_pop", timeout_ms, encode(key))[0])

    def queue_len(self, key):
        return int(self.ask("queue_len", encode(key))[0])

    def barrier(self, key, world_size, timeout_ms):
        self.ask("barrier", timeout_ms, encode(key), world_size)
