"""Hosts in network namespaces of their own, with a switch between them, and what can happen to a network.

Needs root and iproute2; loss needs nftables. Everything is gone when the `with` ends, or with the last process in it.
"""

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import threading
import time

counter = itertools.count()


def sh(command, check=True):
    return subprocess.run(command, shell=True, check=check, capture_output=True, text=True)


def missing():
    """Why it cannot be used here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "iproute2 is not installed"
    probe = f"crun-probe-{os.getpid()}"
    made = sh(f"ip netns add {probe} && ip -n {probe} link add dev probe0 type veth peer name probe1", check=False)
    sh(f"ip netns del {probe}", check=False)
    return None if made.returncode == 0 else f"network namespaces cannot be made here: {made.stderr.strip()}"


class Fabric:
    def __init__(self, n_hosts, network=77):
        """network: 10.NETWORK.0.0/24."""
        self.n_hosts = n_hosts
        self.network = network
        self.name = f"crun-{os.getpid()}-{next(counter)}"
        self.hub = f"{self.name}-hub"

    def space(self, host):
        return f"{self.name}-h{host}"

    def address(self, host):
        return f"10.{self.network}.0.{host + 1}"

    def hostname(self, host):
        return f"host{host}"

    def prefix(self, host):
        """In front of a command, to run it on that host, under its name."""
        return ["ip", "netns", "exec", self.space(host), "unshare", "--uts", "sh", "-c",
                f'hostname {self.hostname(host)} && exec "$@"', "sh"]

    def prefix_with_etc(self, host, etc):
        """The same with files of its own in place of those in /etc that have the same name; who writes into them in
        place changes them for whoever runs."""
        return ["ip", "netns", "exec", self.space(host), "unshare", "--uts", "--mount", "sh", "-c",
                f'hostname {self.hostname(host)} && etc=$1 && shift && for f in "$etc"/*; do '
                'mount --bind "$f" /etc/"${f##*/}" || exit 1; done && exec "$@"', "sh", str(etc)]

    def address6(self, host):
        return f"fd{self.network}::{host + 1}"

    def __enter__(self):
        sh(f"ip netns add {self.hub} && ip -n {self.hub} link add sw type bridge && ip -n {self.hub} link set sw up")
        for host in range(self.n_hosts):
            space = self.space(host)
            sh(f"ip netns add {space} && ip -n {space} link set lo up && "
               f"ip -n {self.hub} link add p{host} type veth peer name eth0 netns {space} && "
               f"ip -n {self.hub} link set p{host} master sw up && "
               f"ip -n {space} addr add {self.address(host)}/24 dev eth0 && "
               f"ip -n {space} addr add {self.address6(host)}/64 dev eth0 nodad && ip -n {space} link set eth0 up")
        return self

    def __exit__(self, *_):
        for space in [self.hub, *map(self.space, range(self.n_hosts))]:
            sh(f"ip netns del {space}", check=False)

    def link(self, host, state):
        """"down": the cable is pulled at the switch; "up"."""
        sh(f"ip -n {self.hub} link set p{host} {state}")

    def forget_neighbours(self):
        """Else a host that was not there while its link was down has "No route to host" for seconds."""
        for host in range(self.n_hosts):
            sh(f"ip -n {self.space(host)} neigh flush all")

    def drop(self, host, hook, condition=""):
        """Packets at that host's "input" or "output" vanish, if the condition (of nft) holds."""
        rules = (f"add table inet test; add chain inet test {hook} {{ type filter hook {hook} priority 0; }};"
                 f"add rule inet test {hook} iifname != lo oifname != lo {condition} drop")
        sh(f"ip netns exec {self.space(host)} nft '{rules}'")

    def lose(self, host, percent):
        """Of what arrives there. On all hosts: of every packet, once."""
        self.drop(host, "input", f"numgen random mod 100 lt {percent}")

    def heal(self, host):
        sh(f"ip netns exec {self.space(host)} nft 'delete table inet test'", check=False)


def missing_lines():
    """Why there can be no LongLine here, or None."""
    return None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun is not there"


class LongLine:
    """A line of its own between two hosts of a fabric, that holds every packet back and loses .percent of them. The
    kernels at both ends see a slow network, as the packets themselves are relayed."""

    def __init__(self, fabric, a, b, number, delay_s, percent):
        self.addresses = (f"10.78.{number}.1", f"10.78.{number}.2")
        self.delay_s, self.percent = delay_s, percent
        self.ends = [self.open_end(fabric.space(host), f"line{number}", own, peer)
                     for host, own, peer in ((a, *self.addresses), (b, *self.addresses[::-1]))]
        self.stopping = False
        self.thread = threading.Thread(target=self.relay, daemon=True)
        self.thread.start()

    @staticmethod
    def open_end(space, name, own, peer):
        made = []

        def make():  # in a thread, which may be in another network namespace than the process
            with open(f"/var/run/netns/{space}") as there:
                if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0x40000000) != 0:  # CLONE_NEWNET
                    return
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH14x", name.encode(), 0x1001))  # TUNSETIFF: bare packets
            made.append(fd)
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        sh(f"ip -n {space} addr add {own} peer {peer} dev {name} && ip -n {space} link set {name} up")
        return made[0]

    def relay(self):
        on_the_way, order = [], itertools.count()
        selector = selectors.DefaultSelector()
        for i, fd in enumerate(self.ends):
            selector.register(fd, selectors.EVENT_READ, self.ends[1 - i])
        while not self.stopping:
            wait = on_the_way[0][0] - time.monotonic() if on_the_way else 0.1
            for key, _ in selector.select(max(0, min(wait, 0.1))):
                packet = os.read(key.fd, 65536)
                if random.random() * 100 >= self.percent:
                    heapq.heappush(on_the_way, (time.monotonic() + self.delay_s, next(order), key.data, packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(on_the_way)
                try:
                    os.write(end, packet)
                except OSError:
                    pass  # the end is down: the packet is lost

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopping = True
        self.thread.join()
        for fd in self.ends:
            os.close(fd)


class FaultProxy:
    """A TCP relay in front of (host, port) that can misbehave: .delay (seconds, each way), .cut_after (bytes towards
    the server, then both ends are closed), .half_close (the server's answers end, the rest goes on), .mute. What went
    towards the server is in .upward, the rest in .downward."""

    def __init__(self, target, listen=("127.0.0.1", 0)):
        self.target = target
        self.delay, self.cut_after, self.half_close, self.mute = 0, None, False, False
        self.server = socket.create_server(listen)
        self.port = self.server.getsockname()[1]
        self.pairs = []
        self.upward, self.downward = bytearray(), bytearray()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self.target, 10)
            except OSError:
                client.close()
                continue
            upstream.settimeout(None)
            self.pairs.append((client, upstream))
            threading.Thread(target=self.relay, args=(client, upstream, True), daemon=True).start()
            threading.Thread(target=self.relay, args=(upstream, client, False), daemon=True).start()

    def relay(self, source, sink, is_upward):
        passed = 0
        try:
            while data := source.recv(65536):
                (self.upward if is_upward else self.downward).extend(data)
                if self.delay:
                    threading.Event().wait(self.delay)
                if self.mute:
                    continue
                if is_upward and self.cut_after is not None and passed + len(data) > self.cut_after:
                    sink.sendall(data[:max(0, self.cut_after - passed)])
                    break
                sink.sendall(data)
                passed += len(data)
                if not is_upward and self.half_close:
                    sink.shutdown(socket.SHUT_WR)
                    return
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        """Every connection there is."""
        for pair in self.pairs:
            for end in pair:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()
        self.cut()
