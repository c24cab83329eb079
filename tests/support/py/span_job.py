"""Ranks of one job on several "hosts", started by hand: what a launcher on each of them would say to them.

    with SpanJob((2, 2), [jobs.train(), "toy"]) as job:
        assert job.wait() == [0, 0, 0, 0]

The hosts are nodes by number only, on 127.0.0.1, or network namespaces (Network), which is as far apart as one
machine can be: they share no address and see each other through a bridge.
"""

import os
import subprocess
import uuid

import crund
import jobs


class Network:
    """n namespaces behind a bridge, hosts 10.77.0.1 ... 10.77.0.n. Needs root; RuntimeError says what did not work."""

    def __init__(self, n):
        tag = "crw" + uuid.uuid4().hex[:6]
        self.switch = tag + "s"
        self.names = [f"{tag}h{i}" for i in range(n)]

    def ip(self, *words):
        p = subprocess.run(["ip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if p.returncode != 0:
            raise RuntimeError(f"ip {' '.join(words)}: {p.stdout.strip()}")

    def address(self, host):
        return f"10.77.0.{host + 1}"

    def command(self, host):
        return ["ip", "netns", "exec", self.names[host]]

    def set_link(self, host, state):
        self.ip("-n", self.switch, "link", "set", f"p{host}", state)

    def forget_neighbours(self):
        """That a host was not there while its link was down is remembered for seconds: "No route to host"."""
        for name in self.names:
            self.ip("-n", name, "neigh", "flush", "all")

    def __enter__(self):
        try:
            for name in (self.switch, *self.names):
                self.ip("netns", "add", name)
            self.ip("-n", self.switch, "link", "add", "name", "bridge0", "type", "bridge")
            self.ip("-n", self.switch, "link", "set", "bridge0", "up")
            for host, name in enumerate(self.names):
                self.ip("-n", self.switch, "link", "add", "name", f"p{host}", "type", "veth", "peer", "name", "eth0", "netns", name)
                self.ip("-n", self.switch, "link", "set", f"p{host}", "master", "bridge0", "up")
                self.ip("-n", name, "addr", "add", self.address(host) + "/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    self.ip("-n", name, "link", "set", device, "up")
        except (RuntimeError, FileNotFoundError):
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc):
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        return False


class SpanJob:
    """sizes: how many ranks each host has."""

    def __init__(self, sizes, argv, network=None, env=None):
        self.sizes, self.argv, self.network, self.env = sizes, list(map(str, argv)), network, env or {}
        self.processes = []

    def environment(self, host, local, master):
        first = sum(self.sizes[:host])
        return {**os.environ, "OMP_NUM_THREADS": "1", "CRW_TIMEOUT_MS": "120000", "MASTER_ADDR": master[0],
                "MASTER_PORT": str(master[1]), "RANK": str(first + local), "WORLD_SIZE": str(sum(self.sizes)),
                "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(self.sizes[host]), "GROUP_RANK": str(host),
                "GROUP_WORLD_SIZE": str(len(self.sizes)), **self.env}

    def __enter__(self):
        address = self.network.address(0) if self.network else "127.0.0.1"
        self.store = crund.Crund(jobs.build_folder(), listen=(address + ":0",),
                                 wrapper=self.network.command(0) if self.network else ())
        self.store.__enter__()
        for host, size in enumerate(self.sizes):
            for local in range(size):
                self.processes.append(subprocess.Popen(
                    [*(self.network.command(host) if self.network else ()), *self.argv], stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env=self.environment(host, local, (address, self.store.port))))
        return self

    def wait(self, timeout=120):
        """Their exit codes; what they wrote is in .out and .err then."""
        texts = [p.communicate(timeout=timeout) for p in self.processes]
        self.out, self.err = [t[0] for t in texts], [t[1] for t in texts]
        return [p.returncode for p in self.processes]

    def __exit__(self, *exc):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait(60)
            p.stdout.close()
            p.stderr.close()
        return self.store.__exit__()
