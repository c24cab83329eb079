#!/usr/bin/env python3
"""What a store on the worker's own node costs: round trips through a plain, a fenced and a node-local store, in turns in one run.

    local_store_bench.py [--trips N] [--blocks N] [--core-of-each-host]

Three jobs of two nodes on this machine; the client is where a worker of the second node would be. Each figure is the median
of all round trips, the ratio is that to the plain store. A set has no reply, so it is measured with the get that follows it.
The client is this Python process: its own time is in all three, which brings the ratios a little nearer to 1. At the end 8
clients wait for one key through the node-local store, and the waits that arrive at the rendezvous are counted.

Run it below taskset -c 1, which shows the processor time that a trip costs: on several cores the kernel keeps the two processes of
the plain store on one, and a wake-up of another core of a virtual machine costs more than all else. Of such runs one in four has 1.4
more switches of processes a trip, with the same system calls, and is 0.4 higher. With --core-of-each-host the store of node 0 has a core of its own, as it has a
machine of its own in a job of two hosts.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack

import local_store
from crund import Client, message
from job_secret import write_secret

WAITERS = 8
MODES = {"plain": (False, ["--security=open"]), "fenced": (True, ["--security=require"]), "node-local": (True, ["--seal"])}
GET = message("GET", "key")
# Operation: what is sent, and how many bytes are the answer (a get's: its length, and 8 bytes).
OPERATIONS = {
    "get": (GET, 16),
    "set+get": (message("SET", "key", b"12345678") + GET, 16),
    "add": (message("ADD", "sum", 1), 8),
    "wait": (message("WAIT", ["key"]), 1),
}


def trips(client, request, size, n):
    """Seconds of each round trip."""
    found = []
    for _ in range(n):
        began = time.perf_counter()
        client.send(request)
        client.read(size)
        found.append(time.perf_counter() - began)
    return found


def compare(clients, n_trips, n_blocks):
    times = {}
    for block in range(n_blocks + 1):  # the first one warms up
        for operation, (request, size) in OPERATIONS.items():
            for mode, client in clients.items():
                found = trips(client, request, size, n_trips // n_blocks)
                if block:
                    times.setdefault((operation, mode), []).extend(found)
    print(f"{'':>8}" + "".join(f" {mode + ' us':>14} {'p99':>7} {'ratio':>6}" for mode in clients))
    for operation in OPERATIONS:
        line = f"{operation:>8}"
        plain = statistics.median(times[operation, "plain"])
        for mode in clients:
            these = sorted(times[operation, mode])
            median = statistics.median(these)
            line += f" {median * 1e6:>14.1f} {these[len(these) * 99 // 100] * 1e6:>7.0f} {median / plain:>6.2f}"
        print(line, flush=True)


def count_waits(store):
    """Requests to wait at the rendezvous, for 8 clients of another node that wait for one key."""
    before = store.upstream("wait")
    clients = [Client(*store.address) for _ in range(WAITERS)]
    for client in clients:
        client.send(message("WAIT", ["not yet"]))
    time.sleep(1)  # all of them are at the store of their node
    threads = [threading.Thread(target=client.read, args=(1,)) for client in clients]
    for thread in threads:
        thread.start()
    with Client(*store.address) as setter:
        setter.set("not yet", b"x")
        for thread in threads:
            thread.join()
    for client in clients:
        client.close()
    return store.upstream("wait") - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trips", type=int, default=10000)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--core-of-each-host", action="store_true")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        secret = folder / "secret"
        write_secret(secret)
        stores, clients = {}, {}
        for mode, (has_secret, options) in MODES.items():
            (folder / mode).mkdir()
            more = [f"--secret-file={secret}"] if has_secret else []
            stores[mode] = stack.enter_context(local_store.open_store(folder / mode, *options, *more))
            clients[mode] = stack.enter_context(Client(*stores[mode].address))
            clients[mode].set("key", b"12345678")
            if given.core_of_each_host:
                stores[mode].share_cores(*cores[:2])
        compare(clients, given.trips, given.blocks)
        print(f"{WAITERS} clients of one node wait for one key: {count_waits(stores['node-local'])} request(s) at the rendezvous")


if __name__ == "__main__":
    main()
