#!/usr/bin/env python3
"""crund, PyTorch's libuv TCPStore, redis-server and an empty epoll server under the same load.

    store_bench.py [--build DIR] [--runs N] [--seconds S] [--crowd N] [--only PART]

The server has one core and the load generator (store_load) another; runs of the servers alternate, and the
table has medians. PyTorch asks the resolver for the name of every peer, so what it is connected with matters:
"hosts" means that the names were answered from a private hosts file, "resolver" by whatever this machine has.
Prints figures; fails only when something cannot be measured at all.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

import hosts_ns
from crund import Client, message, multi_set

ROOT = pathlib.Path(__file__).resolve().parents[2]

SERVER_CORE, LOAD_CORE = 0, 1
CONNECTIONS = 50
DEPTHS = (1, 16, 64)
OPERATIONS = ("add", "get")
SLICES_S = 3


class Server:
    """One of the servers. After entering: .port and .pid of the process that serves."""

    def __init__(self, name, command, protocol, port=None):
        self.name, self.protocol, self.port = name, protocol, port
        self.command = ["taskset", "-c", str(SERVER_CORE), *map(str, command)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        if self.port is None:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"{self.name} did not start")
            self.port = int(line.strip().rsplit(":", 1)[-1])
            self._port_was_free = True
        else:
            wait_for_port(self.port)
        self.pid = self.process.pid
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        if hasattr(self, "_port_was_free"):
            self.port = None
        return False


def wait_for_port(port):
    import socket

    for _ in range(1000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)
    raise RuntimeError(f"nobody listens on port {port}")


def servers(build):
    """The servers that there are here; says what is missing."""
    found = [Server("crund", [build / "rendezvous" / "crund", "--listen", "127.0.0.1:0"], "tcpstore")]
    torch_server = [sys.executable, ROOT / "tests" / "interop" / "torch_server.py", "0", "libuv"]
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
        found.append(Server("PyTorch", hosts_ns.command(torch_server), "tcpstore"))
    else:
        print("PyTorch is left out: it is not installed")
    if shutil.which("redis-server"):
        found.append(Server("redis", ["redis-server", "--port", "28123", "--bind", "127.0.0.1", "--save", "",
                                      "--appendonly", "no"], "redis", 28123))
    else:
        print("redis is left out: no redis-server (apt-get install redis-server)")
    found.append(Server("echo", [build / "tests" / "bench" / "echo_server"], "echo"))
    return found


def load(build, server, **options):
    """One run of store_load against a server that runs; its figures."""
    words = [w for k, v in options.items() for w in (f"--{k}", str(v))]
    p = subprocess.run(
        ["taskset", "-c", str(LOAD_CORE), build / "tests" / "bench" / "store_load", "--port", str(server.port),
         "--protocol", server.protocol, "--pid", str(server.pid), *words],
        capture_output=True, text=True, timeout=600,
    )
    if p.returncode != 0:
        raise RuntimeError(f"{server.name}: {p.stderr}")
    return json.loads(p.stdout)


def rates(build, found, runs, seconds):
    figures = {}
    for _ in range(runs):
        for depth in DEPTHS:
            for op in OPERATIONS:
                for server in found:
                    with server:
                        result = load(build, server, op=op, depth=depth, connections=CONNECTIONS, seconds=seconds)
                    figures.setdefault((depth, op, server.name), []).append(result)
    median = lambda key, what: statistics.median(r[what] for r in figures[key])
    print(f"\n{CONNECTIONS} connections, medians of {runs} alternating runs of {seconds} s "
          "(PyTorch: names answered from the hosts file)")
    print(f"{'in flight':>9} {'op':>4} {'server':>8} {'ops/s':>10} {'CPU us/op':>10} {'p50 us':>8} {'p99 us':>8}"
          f" {'rate of PyTorch':>16} {'CPU of PyTorch':>15} {'CPU of redis':>13}")
    for depth in DEPTHS:
        for op in OPERATIONS:
            for server in found:
                key = (depth, op, server.name)
                ratio = lambda other, what: (
                    f"{median(key, what) / median((depth, op, other), what):.2f}"
                    if (depth, op, other) in figures else "-")
                print(f"{depth:>9} {op:>4} {server.name:>8} {median(key, 'ops_per_s'):>10.0f}"
                      f" {median(key, 'cpu_us_per_op'):>10.3f} {median(key, 'p50_us'):>8.0f}"
                      f" {median(key, 'p99_us'):>8.0f} {ratio('PyTorch', 'ops_per_s'):>16}"
                      f" {ratio('PyTorch', 'cpu_us_per_op'):>15} {ratio('redis', 'cpu_us_per_op'):>13}")


def crowd(build, found, n):
    """Clients that arrive together, and pass a barrier."""
    print("\nclients connecting together, then one barrier (ADD, SET by the last, WAIT)")

    def show(server, how, n):
        with server:
            # One address, since the hosts file has a name for that one.
            r = load(build, server, op="connect", connections=n, **{"per-address": 20000})
        print(f"{server.name:>8} ({how}): {n} connected and validated in {r['connect_s']:.3f} s, barrier in "
              f"{r['barrier_s']:.3f} s, memory {r['rss_before_kib'] / 1024:.1f} -> {r['rss_idle_kib'] / 1024:.1f} MiB")

    for server in found:
        if server.name == "crund":
            show(server, "no look-ups", n)
        elif server.name == "PyTorch":
            show(server, "hosts", n)
            plain = Server("PyTorch", [sys.executable, ROOT / "tests" / "interop" / "torch_server.py", "0", "libuv"],
                           "tcpstore")
            show(plain, "resolver", 200)


def cpu_s(pid):
    return sum(int((task / "schedstat").read_text().split()[0])
               for task in pathlib.Path(f"/proc/{pid}/task").iterdir()) / 1e9


def send_slices(sender, m, seconds):
    """In slices of 4 KiB, spread over that time, or as long as the server makes it wait."""
    started = time.monotonic()
    for at in range(0, len(m), 4096):
        sender.send(m[at : at + 4096])
        ahead = at / len(m) * seconds - (time.monotonic() - started)
        if ahead > 0.002:
            time.sleep(ahead)
    sender.ping()


def slices(build, found):
    """A large message arrives in small pieces: what it costs, and what the others notice."""
    print(f"\na MULTI_SET in slices of 4 KiB, at once (CPU time), and over {SLICES_S} s while another client pings")
    for server in found:
        if server.name not in ("crund", "PyTorch"):
            continue
        for n_values in (1, 8):
            m = multi_set([(f"/large{i}", b"x" * ((8 << 20) - 1000)) for i in range(n_values)])
            mib = len(m) / (1 << 20)
            with server, Client("127.0.0.1", server.port, timeout=300) as sender:
                cpu = cpu_s(server.pid)
                send_slices(sender, m, 0)
                cpu = cpu_s(server.pid) - cpu
                thread = threading.Thread(target=send_slices, args=(sender, m, SLICES_S))
                thread.start()
                r = load(build, server, op="ping", depth=1, connections=1, seconds=SLICES_S - 0.5)
                thread.join()
            print(f"{server.name:>8}: {mib:.0f} MiB, {1000 * cpu / mib:.2f} ms of CPU per MiB; pings p50 "
                  f"{r['p50_us']:.0f} us, p99 {r['p99_us']:.0f} us, max {r['max_us'] / 1000:.1f} ms")


def rss_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the server is gone")


def deaf(found):
    """Clients that ask for a large value again and again and never read: what the server holds for them."""
    print("\nclients that never read, each asking 60 times for a value of 4 MiB (1.3 KB sent)")
    request = message("GET", "/big") * 60
    for server in found:
        for n in {"crund": (1, 100), "PyTorch": (1,)}.get(server.name, ()):
            with server, Client("127.0.0.1", server.port) as good:
                good.set("/big", b"x" * (4 << 20))
                good.ping()
                before = rss_mib(server.pid)
                clients = [Client("127.0.0.1", server.port, rcvbuf=4096) for _ in range(n)]
                for client in clients:
                    client.send(request)
                time.sleep(2)
                good.ping()
                print(f"{server.name:>8}: {n} of them, {n * len(request)} bytes sent: memory {before:.1f} -> "
                      f"{rss_mib(server.pid):.1f} MiB")
                for client in clients:
                    client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=os.environ.get("CRUN_BUILD", ROOT / "build"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--crowd", type=int, default=10000)
    parser.add_argument("--only", choices=("rates", "crowd", "slices", "deaf"))
    options = parser.parse_args()
    build = pathlib.Path(options.build).resolve()
    found = servers(build)
    print(f"{os.uname().release}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}")
    if options.only in (None, "rates"):
        rates(build, found, options.runs, options.seconds)
    if options.only in (None, "crowd"):
        crowd(build, found, options.crowd)
    if options.only in (None, "slices"):
        slices(build, found)
    if options.only in (None, "deaf"):
        deaf(found)


if __name__ == "__main__":
    main()
