"""crun's rendezvous under an unmodified torchrun:

    crund --listen :29400                                                              # anywhere
    torchrun --nnodes=2:4 --rdzv-backend=crun --rdzv-endpoint=HOST:29400 --rdzv-id=ID ...    # on every node

torchrun finds this module by its entry point (group torchrun.handlers). Each agent starts `crun --agent-fd`, which
owns the session with the rendezvous: connection, reconnection, signs of life, the store of each round. This class only
translates, see crun(1), "A foreign agent", for the lines between them.

What the agent of torchrun does with it:
  - next_rendezvous() waits for a place, after a failure of its own workers with the report of it;
  - num_nodes_waiting() is asked every monitor interval: it is 1 as soon as the round has ended, because a node was lost, left,
    failed or joined. The agent then restarts its workers, which it does not charge to --max-restarts;
  - shutdown() reports success, or that this node will not go on, which ends the job on all nodes.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

import crun_launch

__all__ = ["CrunRendezvousHandler", "create_handler", "handler_factory"]

BACKEND = "crun"
END_S = 15.0   # for the other nodes to report that they have ended well, too
STORE_S = 60.0  # for operations of agents on the store of a round
# Keys of --rdzv-conf that crun knows; torchrun itself adds others ("timeout", "rank").
CONF = ("join_timeout", "last_call_timeout", "node_timeout_ms", "max_changes", "is_host", "close_timeout", "read_timeout",
        "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "cas_backoff_max_seconds", "store_type")

log = logging.getLogger(__name__)


class _Session:
    """`crun --agent-fd` and the socket to it. A thread reads its events; each is a dict."""

    def __init__(self, arguments):
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C of a terminal is for torchrun, which tells crun by what it does next.
            self._process = subprocess.Popen(
                [crun_launch.program("crun"), f"--agent-fd={theirs.fileno()}", *arguments], stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True)
        self._socket = ours
        self._changed = threading.Condition()
        self.starts = []      # events "start" that next_rendezvous() has not taken
        self.stop = None      # the event that has ended the present round
        self.end = None       # the last event
        threading.Thread(target=self._read, name="crun-rendezvous", daemon=True).start()

    def _read(self):
        with self._socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                self._take(json.loads(line))
        self._take({"event": "end", "exit_code": 1, "cause": "the process crun --agent-fd has ended"})

    def _take(self, event):
        with self._changed:
            if event["event"] == "start":
                self.starts.append(event)
                self.stop = None
            elif event["event"] == "stop":
                self.stop = event
            elif self.end is None:
                self.end = event
            self._changed.notify_all()

    def send(self, **command):
        try:
            self._socket.sendall(json.dumps(command).encode() + b"\n")
        except OSError:
            pass  # the reading thread sees the end, too

    def wait(self, is_there, timeout=None):
        """Waits in short steps: a lock alone would hold back signals of the main thread."""
        left = timeout
        with self._changed:
            while not is_there():
                step = 0.2 if left is None else min(0.2, left)
                if step <= 0:
                    return False
                self._changed.wait(step)
                left = None if left is None else left - step
        return True

    def close(self):
        """crun stays behind while it serves the rendezvous to nodes that have not asked for the result."""
        self._socket.close()
        self._process.poll()


class CrunRendezvousHandler(RendezvousHandler):
    """One agent of torchrun in crun's rendezvous."""

    def __init__(self, params: RendezvousParameters):
        if not params.endpoint:
            raise ValueError("--rdzv-backend=crun needs --rdzv-endpoint=HOST:PORT, where crund listens")
        conf = ",".join(f"{key}={params.config[key]}" for key in CONF if params.config.get(key) is not None)
        arguments = [f"--nnodes={params.min_nodes}:{params.max_nodes}", "--rdzv-backend=c10d",
                     f"--rdzv-endpoint={params.endpoint}", f"--rdzv-id={params.run_id}", f"--rdzv-conf={conf}"]
        if params.local_addr:
            arguments.append(f"--local-addr={params.local_addr}")
        self._run_id = params.run_id
        self._arguments = arguments
        self._session = None
        self._round = None   # the event "start" that this agent's workers belong to
        self._closed = False

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def _fail_ended(self):
        """The job has ended. Without a round this node was a spare one, or has come too late: no failure of its own."""
        end = self._session.end
        self._closed = True
        if end["exit_code"] == 0 and self._round is None:
            log.warning("the job has ended well without this node")
            # RendezvousGracefulExitError is meant for this, but ends in an AttributeError of torchrun.
            sys.exit(0)
        raise RendezvousClosedError(end["cause"] or "the job has ended")

    def next_rendezvous(self) -> RendezvousInfo:
        if self._session is None:
            self._session = _Session(self._arguments)
        session = self._session
        if self._round is not None and session.stop is None:
            session.send(do="failed", text="a worker of torchrun failed; see the log of this node")
        session.send(do="ready")
        session.wait(lambda: session.starts or session.end)
        if not session.starts:
            self._fail_ended()
        self._round = session.starts.pop(0)
        return self._info(self._round)

    def _info(self, start):
        address, port = start["master_addr"], start["master_port"]
        try:
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, multi_tenant=True,
                             timeout=timedelta(seconds=STORE_S))
        except Exception as error:
            raise RendezvousConnectionError(f"the store of round {start['generation']} at {address}:{port} cannot be reached") from error
        store = PrefixStore(f"torch.rendezvous.{self._run_id}.{start['generation']}", store)
        rank, size = start["group_rank"], start["group_world_size"]
        if self.use_agent_store:
            shared = RendezvousStoreInfo(address, port)
        else:
            shared = RendezvousStoreInfo.build(rank, store, address if rank == 0 else None)
        return RendezvousInfo(store, rank, size, shared)

    def num_nodes_waiting(self) -> int:
        session = self._session
        if session is None or self._round is None:
            return 0
        return 1 if session.stop or session.starts or session.end else 0

    def is_closed(self) -> bool:
        return self._closed or (self._session is not None and self._session.end is not None)

    def set_closed(self):
        """This node does not go on, and no other shall."""
        if self._session is not None and not self.is_closed():
            self._session.send(do="failed", fatal=True, text="torchrun on this node does not go on")
        self._closed = True

    def shutdown(self) -> bool:
        """torchrun calls this when its workers have ended well, and while an exception ends it; not after a signal."""
        session = self._session
        if session is None:
            return True
        if sys.exc_info()[0] is not None:
            self.set_closed()
            session.wait(lambda: session.end, 2.0)
        elif not self.is_closed():
            session.send(do="done")
            session.wait(lambda: session.end, END_S)
        self._closed = True
        session.close()
        return True


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    return CrunRendezvousHandler(params)


def handler_factory():
    """What torchrun calls: the entry point's object gives a creator of handlers."""
    return create_handler
