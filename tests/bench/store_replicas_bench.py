#!/usr/bin/env python3
"""What --store-replicas=2 costs: round trips through a node's store to one crund, and to one with a backup, in turns in one run.

    store_replicas_bench.py [--trips N] [--blocks N]

Two places of three members of etcd and three crunds on this machine, and a job of two nodes at each. Each figure is the median of all
round trips, the ratio is that to one crund without a backup. A set has no reply, so it is measured with the get that follows it.
"""

import argparse
import pathlib
import re
import statistics
import tempfile
from contextlib import ExitStack

import local_store
import nodes as lib
from crund import Client
from etcd_crunds import open_place
from jobs import wait_until
from local_store_bench import OPERATIONS, trips


def open_job(stack, folder, secret, replicas):
    """A client where a worker of the second node would be."""
    folder.mkdir()
    place = stack.enter_context(open_place(folder, "--secret-file", str(secret), "--store-replicas", str(replicas)))
    if replicas == 2:
        assert wait_until(lambda: "another crund is the backup" in place.crunds[place.leader()].log(), 60)
    end = folder / "end"
    nodes = stack.enter_context(lib.Nodes(folder))
    stack.callback(end.touch)
    for _ in range(2):
        nodes.crun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{place.ports[place.leader()]}", "--rdzv-id=j",
                   "--seal", f"--secret-file={secret}", "--no-python", "sh", "-c", local_store.WAIT, end)
    for node in nodes:
        node.wait_for(".\n")
    rank, host, port = re.search(r"STORE (\d) (\S+) (\d+)\.", nodes[1].text()).groups()
    client = stack.enter_context(Client(host, int(port)))
    client.set("key", b"12345678")
    return client


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trips", type=int, default=10000)
    parser.add_argument("--blocks", type=int, default=20)
    given = parser.parse_args()
    times = {}
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        secret = folder / "secret"
        secret.write_bytes(b"a secret of the benchmark")
        secret.chmod(0o600)
        clients = {n: open_job(stack, folder / str(n), secret, n) for n in (1, 2)}
        for block in range(given.blocks + 1):  # the first one warms up
            for operation, (request, size) in OPERATIONS.items():
                for n, client in clients.items():
                    found = trips(client, request, size, given.trips // given.blocks)
                    if block:
                        times.setdefault((operation, n), []).extend(found)
    print(f"{'':>8} {'1 crund us':>12} {'p99':>7} {'2 crunds us':>12} {'p99':>7} {'ratio':>6}")
    for operation in OPERATIONS:
        one, two = (sorted(times[operation, n]) for n in (1, 2))
        medians = [statistics.median(t) for t in (one, two)]
        p99 = [t[len(t) * 99 // 100] * 1e6 for t in (one, two)]
        print(f"{operation:>8} {medians[0] * 1e6:>12.1f} {p99[0]:>7.0f} {medians[1] * 1e6:>12.1f} {p99[1]:>7.0f} "
              f"{medians[1] / medians[0]:>6.2f}")


if __name__ == "__main__":
    main()
