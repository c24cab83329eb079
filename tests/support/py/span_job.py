"""Ranks of one job on several "hosts", started by hand: what a launcher on each of them would say to them.

    with SpanJob((2, 2), [jobs.train(), "toy"]) as job:
        assert job.wait() == [0, 0, 0, 0]

The hosts are nodes by number only, on 127.0.0.1, or those of a Fabric (fabric.py): these share no address and see
each other through a bridge.
"""

import os
import subprocess

import crund
import jobs


class SpanJob:
    """sizes: how many ranks each host has. network: a Fabric."""

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
                                 wrapper=self.network.prefix(0) if self.network else ())
        self.store.__enter__()
        for host, size in enumerate(self.sizes):
            for local in range(size):
                self.processes.append(subprocess.Popen(
                    [*(self.network.prefix(host) if self.network else ()), *self.argv], stdin=subprocess.DEVNULL,
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
