"""An agent of crun in the hands of a test: speaks the agent session (proto/PROTOCOL.md) to a rendezvous, frame by frame."""

import itertools
import json
import secrets
import socket
import struct
import time

from crund import VALIDATE, Stream, message

OPENING = b"\xc5crun/1\n"
PARAMS = {
    "min_nodes": 1, "max_nodes": 1, "max_restarts": 3, "max_changes": 10, "join_timeout_ms": 60000,
    "last_call_ms": 0, "node_timeout_ms": 60000,
}


class Agent(Stream):
    """One node. Every connection of it says the same nonce; `report` is what it would say about itself now."""

    names = itertools.count()

    def __init__(self, port, job="job", host="127.0.0.1", timeout=60, **hello):
        self.address = (host, port) if isinstance(port, int) else port  # or a unix socket's path
        self.timeout = timeout
        self.nonce = secrets.token_hex(8), secrets.token_hex(8)
        self.attempt = 0
        self.report = {"phase": "ready", "port": 20000}
        params = {k: hello.pop(k) for k in list(hello) if k in PARAMS}
        self.who = {"job": job, "host": f"node{next(self.names)}", "role": "default", "workers": 2, **hello}
        self.params = {**PARAMS, **params}
        self.socket = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
        return False

    def close(self):
        if self.socket:
            self.socket.close()
        self.socket = None

    # ---- bytes

    def connect(self):
        """Greets, and waits for the echo."""
        self.close()
        if isinstance(self.address, tuple):
            self.socket = socket.create_connection(self.address, timeout=self.timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(self.timeout)
            self.socket.connect(self.address)
        self.send(VALIDATE + message("PING", 4711))
        assert self.read(4) == struct.pack("<I", 4711)
        return self

    def send_body(self, body):
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send(struct.pack("<I", len(text)) + text)

    def alive(self):
        self.send(struct.pack("<I", 0))

    def frame(self):
        """The next frame: a view, or None for "I am here"."""
        n = struct.unpack("<I", self.read(4))[0]
        assert n <= 16384
        return json.loads(self.read(n)) if n else None

    def view(self, *kinds):
        """The next view, or the next one of these kinds."""
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            v = self.frame()
            if v is not None and (not kinds or v["view"] in kinds):
                return v
        raise TimeoutError(f"no view of {kinds}")

    # ---- conversation

    def hello(self, **more):
        self.attempt += 1
        return {
            "hello": 1, **self.who, "nonce_high": self.nonce[0], "nonce_low": self.nonce[1],
            "attempt": self.attempt, "params": self.params, "report": self.report, **more,
        }

    def join(self, **more):
        """Connects, says hello, reads the opening."""
        self.connect()
        self.send(OPENING)
        self.send_body(self.hello(**more))
        assert self.read(len(OPENING)) == OPENING
        return self

    def say(self, phase, **more):
        self.report = {**{k: v for k, v in self.report.items() if k not in ("cause", "age_ns")}, "phase": phase, **more}
        self.send_body({"report": self.report})

    def start(self):
        """Waits for a place and takes it; returns the view."""
        v = self.view("start")
        self.report = {
            "phase": "running", "instance": v["instance"], "generation": v["generation"],
            "group_rank": v["place"]["group_rank"], "port": self.report.get("port", 0),
            "restarts": v.get("restarts", 0), "changes": v.get("changes", 0),
        }
        self.send_body({"report": self.report})
        return v

    def fail(self, rank, exit_code=1, age_ns=0):
        self.say("failed", age_ns=age_ns, cause={
            "kind": "worker", "rank": rank, "local_rank": 0, "exit_code": exit_code, "pid": 4711,
        })
