"""Jobs of several nodes, each a crun (or torchrun) of its own on this machine."""

import collections
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

import jobs

QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def can_connect(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


# Of runs at once (tests/soak fresh-runs) each has ports of its own.
run_turn, n_runs = map(int, os.environ.get("CRUN_TESTS_PORTS", "0/1").split("/"))
port_turn, n_port_turns = 0, 1


def share_ports(turn, n_turns):
    """Of n_turns processes of one test each calls this with its number, and is given ports that the others are not."""
    global port_turn, n_port_turns
    port_turn, n_port_turns = turn, n_turns


drawn = collections.deque(maxlen=100)  # ports that may not be in use yet


def free_port():
    """A port that nothing uses. Below those that the kernel hands out, so that nobody gets it by chance."""
    for _ in range(100):
        port = random.SystemRandom().randrange(15000 + run_turn + n_runs * port_turn, 32000, n_runs * n_port_turns)
        with socket.socket(socket.AF_INET6) as s:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                s.bind(("::", port))
            except OSError:
                continue
        if port not in drawn:
            drawn.append(port)
            return port
    raise AssertionError("no free port found")


class Node:
    """One launcher with its output in a file; in a session of its own, so that nothing is left of it."""

    def __init__(self, command, out, env=None, prefix=()):
        self.out = pathlib.Path(out)
        with open(self.out, "wb") as log:
            self.process = subprocess.Popen([*prefix, *map(str, command)], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, env={**os.environ, **QUIET, **(env or {})},
                                            start_new_session=True)

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return self.out.read_text(errors="replace")

    def wait(self, timeout=90):
        return self.process.wait(timeout)

    def signal(self, number):
        if self.process.poll() is None:
            os.kill(self.process.pid, number)

    def wait_for(self, what, timeout=60):
        self.wait_for_match(re.escape(what), timeout)

    def wait_for_match(self, pattern, timeout=60):
        """The match of a regular expression in the output. It has to end with what comes behind the part that is wanted, as a
        line may be there in part."""
        def search():
            has_ended = self.process.poll() is not None  # before the text is read: its last words are in it
            found = re.search(pattern, self.text())
            assert found or not has_ended, f"ended without {pattern!r}:\n{self.text()[-3000:]}"
            return found

        try:
            return jobs.wait_for(search, timeout, 0.01)
        except AssertionError as e:
            raise AssertionError(f"{pattern!r}: {e}\n{self.text()[-3000:]}") from None

    def finish(self):
        """Kills what is left, but for the keepers of cgroups: they end by themselves, and leave no folder behind."""
        if self.process.poll() is None:
            left = [pid for pid in jobs.descendants(self.process.pid) if jobs.name(pid) != "job-keeper"]
            self.process.kill()
            for pid in left:
                jobs.kill(pid, signal.SIGKILL)
        self.process.wait()


class Nodes(list):
    """with Nodes(tmp_path) as nodes: nodes.crun(...)"""

    def __init__(self, folder):
        super().__init__()
        self.folder = pathlib.Path(folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self:
            node.finish()

    def start(self, command, **more):
        self.append(Node(command, self.folder / f"node{len(self)}.log", **more))
        return self[-1]

    def crun(self, *args, **more):
        return self.start([jobs.crun(), *args], **more)

    def torchrun(self, *args, **more):
        return self.start([sys.executable, "-m", "torch.distributed.run", *args], **more)

    def codes(self, timeout=90):
        deadline = time.monotonic() + timeout
        try:
            return [n.wait(max(0.1, deadline - time.monotonic())) for n in self]
        except subprocess.TimeoutExpired:
            raise AssertionError("still running: " + self.texts()) from None

    def texts(self):
        return "".join(f"--- {n.out.name}, exit code {n.process.returncode}\n{n.text()[-3000:]}\n" for n in self)
