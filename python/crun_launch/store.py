"""A store that no worker owns.

    with crun_launch.Store() as store:                  # starts crund on a free port of this machine
        os.environ.update(MASTER_ADDR=store.host, MASTER_PORT=str(store.port))
        torch.multiprocessing.spawn(...)

With PyTorch's own TCPStore the process of rank 0 serves the store, so it ends with that process, and it cannot begin before it.
"""

import os
import socket
import subprocess
from datetime import timedelta

from torch.distributed import TCPStore

import crun_launch

__all__ = ["Store"]

START_S = 10.0


class Store(TCPStore):
    """A client of a crund that this object starts; crund ends with the object or its process.

    host: the address to listen on: "0.0.0.0" or "::" for other machines, which then need an address of this one. Other
    processes connect with TCPStore(store.host, store.port, is_master=False).
    """

    def __init__(self, host="127.0.0.1", port=0, timeout=timedelta(seconds=300), options=()):
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        ours, theirs = socket.socketpair()
        with theirs:
            self._daemon = subprocess.Popen(
                [crun_launch.program("crund"), "--listen", address, "--announce-fd", str(theirs.fileno()), *options],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True)
        self._owner = ours
        ours.settimeout(START_S)
        line = ours.makefile("r").readline()
        if not line.endswith("\n"):
            self.close()
            raise RuntimeError(f"crund could not listen on {address}; its reason is on standard error")
        listens = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        super().__init__(listens, int(line.rpartition(":")[2]), is_master=False, wait_for_workers=False, timeout=timeout)

    @property
    def pid(self):
        """Of crund."""
        return self._daemon.pid

    def close(self):
        """Ends crund; the store cannot be used after that."""
        self._owner.close()
        self._daemon.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
