"""What a good client of crund notices while other clients attack it.

    attacks.py [--seconds S] [--scale X] [--limit MS] [ATTACK...]

One row for each attack: the memory of crund, the round trip of a good client that pings, and how long a new connection takes
and how many can be made in a second. The attackers run on one core; crund and the good client on another. Beside the
times is the CPU time that crund spent on others while a ping waited, and the ping without the time for which crund and the client
were ready to run and had no CPU: these do not depend on what else the machine does.
Exits with 1 when the 99th percentile of the ping is above the limit (20 ms) in any row, or crund ends.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import pathlib
import random
import resource
import secrets
import signal
import socket
import struct
import sys
import time

from crund import VALIDATE, Client, Closed, Crund, message, multi_set, vec
from session_agent import OPENING, Agent

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CRUN_BUILD", ROOT / "build"))
MIB = 1 << 20
ERRORS = (OSError, Closed)

ATTACKS = {}


def attack(text, *options, warm_up=1.0):
    """The function runs in a process of its own until that is killed; it sets `ready` when the attack is under way."""

    def register(function):
        ATTACKS[function.__name__] = (text, function, options, warm_up)
        return function

    return register


class Attacker:
    def __init__(self, port, scale, ready):
        self.port, self.scale, self.ready = port, scale, ready

    def n(self, count):
        return max(1, int(count * self.scale))

    def client(self, **kwargs):
        return Client("127.0.0.1", self.port, **kwargs)

    def clients(self, count, **kwargs):
        return [self.client(**kwargs) for _ in range(self.n(count))]

    def raw(self):
        return socket.create_connection(("127.0.0.1", self.port))

    def keys(self, count, size=8):
        """Stores that many keys, of that many bytes each."""
        client = self.client()
        for i in range(0, self.n(count), 50000):
            client.send(multi_set([(f"/{k:0{size}d}", b"") for k in range(i, i + 50000)]))
        assert client.ping()

    def sleep(self):
        self.ready.set()
        time.sleep(3600)


def push(s, data):
    """Sends without waiting for a peer that does not read."""
    s.settimeout(0.2)
    try:
        s.sendall(data)
    except OSError:
        pass


# ---- connections


@attack("no attack")
def rest(a):
    a.sleep()


@attack("3,000 slow greetings, a byte every 2 s")
def slowloris(a):
    sockets = [a.raw() for _ in range(a.n(3000))]
    a.ready.set()
    while True:
        for i, s in enumerate(sockets):
            try:
                s.send(VALIDATE[:1])
            except OSError:
                sockets[i] = a.raw()
        time.sleep(2)


@attack("10,000 greeted, idle")
def idle(a):
    kept = a.clients(10000)
    a.sleep()
    del kept


@attack("connect and reset, 4 processes")
def resets(a):
    a.ready.set()
    for _ in range(2):
        os.fork()
    linger = struct.pack("ii", 1, 0)
    while True:
        try:
            s = a.raw()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            s.close()
        except OSError:
            time.sleep(0.01)


# ---- broken and huge requests


@attack("giant lengths and broken JSON, as fast as possible")
def broken(a):
    rng = random.Random(1)
    a.ready.set()
    while True:
        try:
            c = a.client()
            c.send(rng.choice([b"\x01" + b"\xff" * 8, b"\x0b" + b"\xff" * 8, bytes([rng.randrange(256)]) * 40,
                               OPENING + struct.pack("<I", 16000) + b"{" * 16000]))
            c.close()
        except ERRORS:
            pass


@attack("8 MiB messages never completed, 200")
def half_messages(a):
    clients = a.clients(200)
    part = message("SET", "/half", b"x" * (8 * MIB - 100))[:-1]
    a.ready.set()
    for c in clients:
        push(c.socket, part)
    a.sleep()


@attack("SET of 8 MiB as fast as possible, 4 clients")
def large_sets(a):
    clients, m = a.clients(4), message("SET", "/large", b"x" * (8 * MIB - 100))
    a.ready.set()
    while True:
        for c in clients:
            c.send(m)


@attack("pipelined SETs of new keys, 60 clients", "--max-bytes", "8G")
def pipelined_sets(a):
    clients, i = a.clients(60), 0
    a.ready.set()
    while True:
        for c in clients:
            push(c.socket, b"".join(message("SET", f"/p{i + k}", b"v") for k in range(2000)))
            i += 2000


# ---- waits


@attack("5,000 waiters on one key, released again and again")
def waiters(a):
    clients, writer = a.clients(5000), a.client()
    a.ready.set()
    while True:
        for c in clients:
            c.send(message("WAIT", ["/door"]))
        writer.set("/door", b"1")
        for c in clients:
            c.read(1)
        writer.send(message("DELETE_KEY", "/door"))
        writer.read(8)


@attack("WAIT for 131,072 new names and close, 60 clients")
def large_waits(a):
    ms = [message("WAIT", [f"/w{i}/{k}" for k in range(131072)]) for i in range(4)]
    a.ready.set()
    while True:
        for i in range(60):
            c = a.client()
            push(c.socket, ms[i % 4])
            c.close()


@attack("CHECK and MULTI_GET of 131,072 names, 20 clients")
def large_checks(a):
    a.keys(131072)
    names = [f"/{k:08d}" for k in range(131072)]
    check, get, clients = message("CHECK", names), message("MULTI_GET", names), a.clients(20)
    a.ready.set()
    while True:
        for c in clients:
            push(c.socket, check)
        for c in clients:
            push(c.socket, get)


# ---- memory


@attack("a queue of 10 million items", "--max-bytes", "8G")
def long_queue(a):
    clients, m = a.clients(4), message("QUEUE_PUSH", "/q", b"x") * 5000
    for _ in range(a.n(500)):
        for c in clients:
            c.send(m)
    a.ready.set()
    c = a.client()
    while True:
        try:
            c.send(m)
        except ERRORS:  # this address has its share; what it pushed stays
            time.sleep(0.01)
            c = a.client()


@attack("filled to 4 GiB, and refused from then on")
def fill(a):
    i, m = 0, b"x" * (8 * MIB - 100)
    c = a.client()
    try:
        for i in range(a.n(600)):
            c.send(message("SET", f"/fill{i}", m))
        c.ping()
    except ERRORS:
        pass
    a.ready.set()
    while True:
        try:
            c = a.client()
            c.send(message("SET", "/more", m))
            c.ping()
        except ERRORS:
            pass


@attack("MULTI_SET into millions of keys, and deletion", "--max-bytes", "8G")
def many_keys(a):
    a.keys(4000000)
    c, i = a.client(), 4000000
    a.ready.set()
    while True:
        c.send(multi_set([(f"/{k:08d}", b"") for k in range(i, i + 20000)]))
        for k in range(i, i + 20000, 2000):
            c.send(b"".join(message("DELETE_KEY", f"/{n:08d}") for n in range(k, k + 2000)))
            c.read(8 * 2000)
        i += 20000


@attack("GET unread and APPEND of one byte, value of 400 MiB")
def append(a):
    c = a.client()
    for _ in range(a.n(50)):
        c.send(message("APPEND", "/big", b"x" * (8 * MIB - 100)))
    assert c.ping()
    readers = a.clients(50)
    a.ready.set()
    while True:
        for r in readers:
            push(r.socket, message("GET", "/big"))
            c.send(message("APPEND", "/big", b"y"))
        c.ping()


# ---- replies


@attack("GET of 8 MiB unread, 500 clients")
def unread_gets(a):
    c = a.client()
    c.set("/v", b"x" * (8 * MIB - 100))
    clients = a.clients(500)
    for c in clients:
        push(c.socket, message("GET", "/v") * 20)
    a.sleep()


@attack("LIST_KEYS of 2 million keys, read")
def list_keys(a):
    a.keys(2000000)
    clients = a.clients(8)
    a.ready.set()
    while True:
        for c in clients:
            c.send(message("LIST_KEYS"))
        for c in clients:
            for left in range(8 + a.n(2000000) * 17, 0, -MIB):
                c.read(min(left, MIB))


@attack("LIST_KEYS of 2 million keys, 200 clients that send one byte and close")
def departed_lists(a):
    a.keys(2000000)
    a.ready.set()
    while True:
        for _ in range(200):
            c = a.client()
            c.send(message("LIST_KEYS"))
            c.close()
        time.sleep(0.5)


@attack("LIST_KEYS 1,000 times unread, 200 clients, while keys are deleted")
def unread_lists(a):
    a.keys(100000)
    for c in (clients := a.clients(200)):
        push(c.socket, message("LIST_KEYS") * 1000)
    c, i = a.client(), 0
    a.ready.set()
    while True:
        m = b"".join(message("SET", f"/churn{i + k}", b"") + message("DELETE_KEY", f"/churn{i + k}") for k in range(500))
        c.send(m)
        c.read(8 * 500)
        i += 500
    del clients


# ---- agents


def hello(job, **more):
    agent = Agent(0, job=job, min_nodes=10000, max_nodes=16000, join_timeout_ms=600000, **more)
    text = json.dumps(agent.hello()).encode()
    return OPENING + struct.pack("<I", len(text)) + text


@attack("9,000 agents in one job")
def agents(a):
    kept = []
    for _ in range(a.n(9000)):
        s = a.raw()
        s.sendall(VALIDATE + hello("crowd"))
        kept.append(s)
    a.ready.set()
    while True:
        for s in kept:
            push(s, struct.pack("<I", 0))
        time.sleep(5)


@attack("reports of an agent that does not read, as fast as possible")
def reports(a):
    report = json.dumps({"report": {"phase": "ready", "port": 20000}}).encode()
    m = (struct.pack("<I", len(report)) + report) * 1000
    a.ready.set()
    while True:
        try:
            s = a.raw()
            s.sendall(VALIDATE + hello("reports" + secrets.token_hex(4)))
            while True:
                s.sendall(m)
        except OSError:
            pass


@attack("random bytes behind a greeting")
def fuzz(a):
    rng = random.Random(2)
    a.ready.set()
    while True:
        try:
            c = a.client()
            op = rng.randrange(20)
            c.send(bytes([op]) + b"".join(vec(rng.randbytes(rng.randrange(40))) for _ in range(rng.randrange(5))))
            c.close()
        except ERRORS:
            pass


# ---- the good client


class CpuTimes:
    """(ns that the first thread of a process has run, ns that it has waited for a CPU)"""

    def __init__(self, pid):
        self.file = open(f"/proc/{pid}/schedstat", "rb", buffering=0)

    def read(self):
        return [int(field) for field in os.pread(self.file.fileno(), 64, 0).split()[:2]]


class Good:
    """Pings, and connects, in turn, in this process."""

    def __init__(self, crund):
        self.crund, self.client = crund, crund.client()
        self.crund_times, self.own_times = CpuTimes(crund.pid), CpuTimes("self")
        self.pings, self.unwaited, self.cpu, self.connects = [], [], [], []

    def ping(self):
        run, wait = self.crund_times.read()
        own_wait = self.own_times.read()[1]
        start = time.perf_counter()
        assert self.client.ping()
        self.pings.append((time.perf_counter() - start) * 1e3)
        run_after, wait_after = self.crund_times.read()
        self.cpu.append((run_after - run) / 1e6)
        waited = wait_after - wait + self.own_times.read()[1] - own_wait
        self.unwaited.append(max(0, self.pings[-1] - waited / 1e6))

    def connect(self):
        start = time.perf_counter()
        with self.crund.client() as c:
            assert c.ping()
        self.connects.append((time.perf_counter() - start) * 1e3)

    def run(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(10):
                self.ping()
                time.sleep(0.0005)
            self.connect()

    def connections_per_second(self, seconds):
        n, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.connect()
            n += 1
        return n / seconds


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def attacker_main(function, port, scale, ready, core):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.setpgid(0, 0)
    function(Attacker(port, scale, ready))


def run_attack(name, seconds, scale, cores):
    text, function, options, warm_up = ATTACKS[name]
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    with Crund(BUILD, *options) as crund:
        if cores:
            os.sched_setaffinity(crund.pid, {cores[0]})
        attacker = context.Process(target=attacker_main, daemon=True,
                                   args=(function, crund.port, scale, ready, cores[1] if cores else None))
        attacker.start()
        try:
            if not ready.wait(600):
                raise AssertionError(f"{name}: the attack did not begin")
            time.sleep(warm_up)
            good = Good(crund)
            good.run(seconds)
            connects = list(good.connects)
            rate = good.connections_per_second(seconds / 4)
            rss = crund.rss_kib() / 1024
            alive = attacker.is_alive()
        finally:
            try:
                os.killpg(attacker.pid, 9)
            except ProcessLookupError:  # ended by itself, which is reported below or by what raised
                pass
            attacker.join()
        assert alive, f"{name}: the attacker ended by itself"
        assert crund.process.poll() is None, f"{name}: crund ended"
    return text, rss, good, connects, rate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="for each attack (10)")
    parser.add_argument("--scale", type=float, default=1, help="factor of all counts (1)")
    parser.add_argument("--limit", type=float, default=20, help="ms (20)")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) == 2:
        os.sched_setaffinity(0, {cores[0]})
    over = []
    print("| attack on crund | MiB | good client p50 / p99 / max ms | p99 without waits for a CPU "
          "| crund's CPU for others in a ping p99 / max ms | new connection p99 ms | a second |\n" + "| --- " * 7 + "|")
    for name in args.attacks or ATTACKS:
        text, rss, good, connects, rate = run_attack(name, args.seconds, args.scale,
                                                     cores if len(cores) == 2 else None)
        print(f"| {text} | {rss:.0f} | {at(good.pings, 0.5):.2f} / {at(good.pings, 0.99):.1f} / {max(good.pings):.0f} "
              f"| {at(good.unwaited, 0.99):.1f} | {at(good.cpu, 0.99):.2f} / {max(good.cpu):.1f} | {at(connects, 0.99):.1f} "
              f"| {rate:.0f} |", flush=True)
        if at(good.pings, 0.99) > args.limit:
            over.append(name)
    if over:
        print(f"above {args.limit} ms: {', '.join(over)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
