"""A worker that waits for keys of the worker store: store_keys.py SUPPORT_FOLDER KEY SETTER [LONER ...]

All ranks wait for a few keys, so that crun knows their rhythm. Then rank SETTER would set KEY and sleeps, as the ranks LONER do; all
others wait for KEY."""

import os
import sys
import time

sys.path.insert(0, sys.argv[1])
from crund import Client, message  # noqa: E402

RANK, KEY, SETTER = os.environ["RANK"], sys.argv[2], sys.argv[3]
store = Client(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=None)


def wait_for(key):
    store.send(message("WAIT", [key]))
    store.read(1)


for step in range(4):
    if RANK == SETTER:
        time.sleep(1.3)
        store.set(f"step {step}", "")
    else:
        wait_for(f"step {step}")
        sum(range(1000000))
if RANK in sys.argv[3:]:
    time.sleep(1000)
wait_for(KEY)
