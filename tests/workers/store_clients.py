"""Clients of the worker store that write, read, compare and add at the same time, each over a connection of its own, for ever.

    store_clients.py SUPPORT_FOLDER FOLDER

FOLDER/history.GENERATION.RANK.CLIENT.PID has their operations (history.py). A connection that ends ends the worker, as it does that of PyTorch."""

import os
import random
import sys
import threading
import time
import traceback

sys.path.insert(0, sys.argv[1])
import history  # noqa: E402
from crund import Client  # noqa: E402

N_CLIENTS, N_KEYS = 3, 3
REPLY_TIMEOUT_S = 120
RANK, GENERATION = os.environ["RANK"], os.environ["CRUN_GENERATION"]


class Register:
    def __init__(self, key, client, recorder, rng, name):
        self.key, self.client, self.recorder, self.rng, self.name = key, client, recorder, rng, name
        self.seen, self.n = "", 0

    def step(self):
        self.n += 1
        desired, kind = f"{self.name}.{self.n}", self.rng.choice(("set", "get", "compare_set"))
        if kind == "compare_set" and not self.seen:
            kind = "get"
        functions = {"set": lambda: self.client.set(self.key, desired), "get": lambda: self.client.get(self.key).decode(),
                     "compare_set": lambda: self.client.compare_set(self.key, self.seen, desired).decode()}
        arguments = {"set": [desired], "get": [], "compare_set": [self.seen, desired]}[kind]
        self.seen = self.recorder.call(kind, self.key, arguments, functions[kind]) or desired


class Counter:
    def __init__(self, key, client, recorder, rng, _name):
        self.key, self.client, self.recorder, self.rng = key, client, recorder, rng

    def step(self):
        amount = self.rng.randrange(3)
        self.recorder.call("add", self.key, [amount], lambda: self.client.add(self.key, amount))


def run_client(number):
    rng, name = random.Random(), f"{RANK}.{number}"
    client = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=REPLY_TIMEOUT_S)
    recorder = history.Recorder(f"{sys.argv[2]}/history.{GENERATION}.{name}.{os.getpid()}", name, time.monotonic)
    if RANK == "0" and number == 0:
        for i in range(N_KEYS):
            recorder.call("set", f"register{i}", ["first"], lambda: client.set(f"register{i}", "first"))  # noqa: B023
    keys = [kind(f"{kind.__name__.lower()}{i}", client, recorder, rng, name) for kind in (Register, Counter) for i in range(N_KEYS)]
    while True:
        rng.choice(keys).step()
        time.sleep(rng.uniform(0, 0.1))


def run_or_end(number):
    try:
        run_client(number)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    os._exit(1)


threads = [threading.Thread(target=run_or_end, args=(i,)) for i in range(N_CLIENTS)]
for thread in threads:
    thread.start()
