"""PyTorch workers that stay in their processes when a peer fails, for jobs under crun --restart-policy=replace.

A training script with DistributedDataParallel, DistributedSampler and snapshots changes in six lines:

    from crun_launch import worker                          # 1
    worker.init_process_group("gloo")                       # 2: instead of torch.distributed's
    ddp = worker.Training(model, optimizer)                 # 3: instead of DistributedDataParallel(model)
    for epoch in ddp.epochs(first, last):                   # 4: instead of range(first, last)
        for x, y in ddp.batches(loader):                    # 5: instead of `in loader`
            with ddp.step():                                # 6
                optimizer.zero_grad()
                loss(ddp(x), y).backward()
                optimizer.step()

When a worker is killed, crun starts a new process with the same rank. The others drop the step in flight and take the new
process into the process group (torch.distributed._reconfigure, PyTorch 2.14 or later). The new process gets model, optimizer,
position in the epoch and random generators from the rank with the most steps, and all ranks do the step again. With several
nodes the group shrinks to the remaining nodes (--nnodes=MIN:MAX), and grows when a node joins. Outside crun, and with an older
PyTorch, the same script runs as an ordinary script: after a failure crun restarts all workers.

Rules for such a script:
- Collectives of the script belong into `with ddp.step()`, in front of optimizer.step(). An error elsewhere ends the process, and
  crun starts a new process in the same place.
- Between init_process_group() and Training() the script calls no collective: a new process would call the collective, and the
  others would not.
- A snapshot is loaded in front of Training(), where a new process takes the state over. Then all ranks compare.
- Groups made with new_group() are made again in the callback `on_regroup`.
- A replaced rank continues the random numbers of its predecessor if the predecessor ran on the same node; else the random numbers
  of the rank that gave the state.

State goes from rank to rank as tensors and a JSON text, never as pickled objects. Beside tensors a state_dict() may contain
numbers, texts, None, lists, tuples and dictionaries.

How peers find each other: each rank writes the handle of its process group to the worker store under the number of the
generation, and waits for the handles of all others. The store is the store of the first generation: the notice "ready" asks crun
to keep the store (proto/worker_notice.h, detail 1). When the store's node is lost, the same process makes the group anew at the
store of the next generation.

How a rank leaves a collective with dead or silent peers: gloo cannot abort a collective. A thread that reads crun's notices ends
the receiving side of the group's connections, found by the port numbers that the ranks published with their handles: gloo then
reads the end. The sending side stays open, and a copy of each descriptor keeps the connection alive when gloo closes the
connection, until all ranks have met again. Otherwise another rank, writing at the same moment, gets EPIPE, and gloo (2.13 to
2.15) never completes a send queued after such an error: the unbound buffers are not signalled. A killed peer can still cause such
an error. A rank kept in a collective by gloo after the cut therefore ends the process (exit code 75), and is replaced like the
failed rank.
NCCL's communicators are revoked (by abort() in a reconfigurable group). Collectives of NCCL then end without an error and with
incomplete sums. So before optimizer.step() applies the sums, the rank waits for its stream and looks whether the group was whole
until the end of the wait.
"""

import collections
import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import weakref
from datetime import timedelta


class _Later(types.ModuleType):
    """A module imported at first use: beat(), the notices and stop_requested() need no PyTorch."""

    def __getattr__(self, name):
        return getattr(importlib.import_module(self.__name__), name)


torch = _Later("torch")
dist = _Later("torch.distributed")

__all__ = ["Notice", "PeerFailed", "Training", "beat", "init_process_group", "notice_fileno", "read_notice",
           "stop_requested"]

# proto/worker_notice.h
_RECORD = struct.Struct("<IIIii")
_PLACE = struct.Struct("<IIIiiIIIIIII")
_PEER_FAILED, _STOP, _GENERATION, _READY, _JOINING = 1, 2, 3, 4, 5
_KEEPS_STORE = 1
_PLACE_NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
                "TORCHELASTIC_RESTART_COUNT")

# The launcher learns of a failure within milliseconds, of a silent node within some seconds.
_CONFIRM_S = 10.0
_SLICE_S = 0.1  # between two looks at whether a signal has come
_BEFORE_LIMIT_S = 60
_STORE_TIMEOUT = timedelta(seconds=30)
# Then all nodes have to be ready for the next generation: without enough nodes the wait may be long.
_GENERATION_S = 600.0
_RECONFIGURE = timedelta(seconds=10)
# And all ranks have to come to their meeting, new processes after their imports.
_MEETING_S = 600.0
_CHUNK_BYTES = 64 << 20
# A thread still blocked in a collective so long after the cut of the group's connections stays blocked.
_STUCK_S = 2.0
_STUCK_EXIT_CODE = 75
# NCCL may revoke a communicator beside the program, and PyTorch takes the revocation for a failure (pytorch#197465).
_IN_PROGRESS = "NCCL operation in progress"
_REVOKE_S = 5.0

Notice = collections.namedtuple("Notice", "kind generation rank detail")
Notice.__doc__ = """One record of crun: kind 1 a peer failed, 2 the job is to stop, 3 the next generation."""


class PeerFailed(RuntimeError):
    """A collective failed because another worker or node did. `rank` is the failed rank, -1 if unknown."""

    def __init__(self, text, rank=-1):
        super().__init__(text)
        self.rank = rank


# ---- notices of crun

class _Notices:
    """Reads the notices in a thread, a single thread for the process."""

    def __init__(self, fd):
        os.set_inheritable(fd, False)
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(True)
        self.readable, self.copies = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.copies.setblocking(False)
        self.readable.setblocking(False)
        self.changed = threading.Condition()
        self.generation = int(os.environ.get("CRUN_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self.failed_rank = None  # of the present generation: a peer has failed
        self.failed_ahead = None  # (generation, rank): as above, of an announced generation before this process enters
        self.next_place = None   # (generation, environment) of the newest announced generation
        self.stop = False
        self.ended = False
        self.cut = lambda place: None  # ends collectives of the present generation; called in the thread
        threading.Thread(target=self._read, name="crun-notices", daemon=True).start()

    def _read(self):
        while True:
            try:
                record = self.socket.recv(4096)
            except OSError:
                record = b""
            if len(record) < _RECORD.size:
                break
            _, *fields = _RECORD.unpack_from(record)
            self._take(Notice(*fields), record)
            with contextlib.suppress(OSError):  # full: not looked at
                self.copies.send(record[:_RECORD.size])
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def _take(self, notice, record):
        with self.changed:  # the main thread cannot begin the next generation meanwhile, whose connections would be cut
            breaks = (notice.kind == _PEER_FAILED and notice.generation == self.generation
                      or notice.kind == _GENERATION and notice.generation > self.generation)
            place = _place_of(record, notice) if notice.kind == _GENERATION else {}
            if breaks and self.failed_rank is None:
                self.failed_rank = notice.rank
            if breaks:
                with contextlib.suppress(Exception):  # the thread has to go on: it brings the next generation
                    self.cut(place)
            if breaks and place:
                self.next_place = (notice.generation, place)
            if notice.kind == _PEER_FAILED and notice.generation > self.generation:
                self.failed_ahead = (notice.generation, notice.rank)
            if notice.kind == _STOP:
                self.stop = True
            self.changed.notify_all()

    def wait(self, condition, seconds):
        """Waits until condition() is true or the time is over. Returns the last result of condition()."""
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.ended, seconds)
            return condition()

    def begin(self, generation):
        with self.changed:
            self.generation = generation
            ahead, self.failed_ahead = self.failed_ahead, None
            self.failed_rank = ahead[1] if ahead and ahead[0] == generation else None
            if self.next_place and self.next_place[0] <= generation:
                self.next_place = None
            elif self.next_place:
                self.failed_rank = -1

    def send(self, kind, rank, detail=0):
        with contextlib.suppress(OSError):  # crun has ended: this process is about to
            self.socket.send(_RECORD.pack(_RECORD.size, kind, self.generation, rank, detail))


def _place_of(record, notice):
    """The environment of the worker in the generation begun by the notice."""
    place = {"CRUN_GENERATION": str(notice.generation), "MASTER_PORT": str(notice.detail)}
    if len(record) >= _PLACE.size:
        place.update(zip(_PLACE_NAMES, map(str, _PLACE.unpack_from(record)[5:])))
        address = record[_PLACE.size:].split(b"\0", 1)[0].decode()
        if address:
            place["MASTER_ADDR"] = address
    return place


@functools.cache
def _notices():
    """None outside crun."""
    fd = os.environ.get("CRUN_NOTICE_FD", "")
    with contextlib.suppress(OSError):
        return _Notices(int(fd)) if fd.isdigit() else None


def notice_fileno():
    """A descriptor that becomes readable when crun has sent a notice, for selectors and asyncio's add_reader(); read_notice()
    returns the notice. -1 outside crun."""
    n = _notices()
    return n.readable.fileno() if n else -1


def read_notice():
    """The next Notice, or None when there is none."""
    n = _notices()
    try:
        return Notice(*_RECORD.unpack(n.readable.recv(_RECORD.size))[1:]) if n else None
    except BlockingIOError:
        return None


# ---- progress: proto/worker_memory.h

_MAGIC = b"CRUNBEAT"
_SLOTS_AT, _SLOT_BYTES = 4096, 32768
_RATE_NS = 1000000000


class _Memory:
    """The memory file that crun gives to each process of a local rank: progress, and random generators by step."""

    def __init__(self, fd):
        size = _SLOTS_AT + 2 * _SLOT_BYTES
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        self.map = mmap.mmap(fd, size)
        if self.map[:8] not in (_MAGIC, bytes(8)):
            raise OSError("the memory file is in use by another runtime")
        self.map[:8] = _MAGIC
        self.earlier = self.latest = None  # beats at least _RATE_NS apart

    def beat(self, step):
        now = (step, time.monotonic_ns())
        if self.latest is None or step < self.latest[0]:
            self.earlier = self.latest = now
        elif now[1] - self.latest[1] >= _RATE_NS:
            self.earlier, self.latest = self.latest, now
        struct.pack_into("<QQQQ", self.map, 8, *now, *self.earlier)

    def keep(self, step, data):
        """Two slots in turn: the slot of the step before stays whole."""
        at = _SLOTS_AT + step % 2 * _SLOT_BYTES
        if len(data) > _SLOT_BYTES - 16:
            return
        struct.pack_into("<Q", self.map, at, 0)
        self.map[at + 16:at + 16 + len(data)] = data
        struct.pack_into("<QQ", self.map, at, step + 1, len(data))

    def kept(self, step):
        at = _SLOTS_AT + step % 2 * _SLOT_BYTES
        number, size = struct.unpack_from("<QQ", self.map, at)
        return bytes(self.map[at + 16:at + 16 + size]) if number == step + 1 and size <= _SLOT_BYTES - 16 else None


@functools.cache
def _memory():
    fd = os.environ.get("CRUN_STATE_FD", "")
    with contextlib.suppress(OSError, ValueError):
        return _Memory(int(fd)) if fd.isdigit() else None


def beat(step):
    """Publishes that the rank has done `step` steps, in memory read by crun. Training.step() calls beat(). Needs no PyTorch."""
    memory = _memory()
    if memory:
        memory.beat(step)


# ---- the process group

def _tcp_sockets():
    """Copies of the process's TCP sockets; the caller closes the copies."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            s = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
            found.append(s)
        else:
            s.close()
    return found


def _is_listening(s):
    return s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def _listening_ports():
    ports = set()
    for s in _tcp_sockets():
        with s:
            if _is_listening(s):
                ports.add(s.getsockname()[1])
    return ports


def _shut_connections(is_selected, how=socket.SHUT_RDWR):
    """Ends the connections whose addresses (own, peer's) are selected: a thread waiting for their data gets an error. Returns
    copies of the descriptors; the connections last until the copies are closed."""
    shut = []
    for s in _tcp_sockets():
        try:
            if not _is_listening(s) and is_selected(s.getsockname(), s.getpeername()):
                s.shutdown(how)
                shut.append(s)
                continue
        except OSError:
            pass
        s.close()
    return shut


def _close_all(sockets):
    while sockets:
        sockets.pop().close()


def _peers_of_port(port):
    """The addresses of all connections to a port."""
    peers = set()
    for s in _tcp_sockets():
        with s, contextlib.suppress(OSError):
            peers.add(s.getpeername())
    return {peer for peer in peers if peer[1] == port}


# ---- a thread that a collective keeps

_COLLECTIVE_PARTS = ("distributed", "autograd", "nn/parallel")
_COLLECTIVE_FOLDERS = None  # the folders of torch


def _collective_folders():
    return _COLLECTIVE_FOLDERS or tuple(os.path.join(os.path.dirname(torch.__file__), part, "") for part in _COLLECTIVE_PARTS)


def _switches(thread):
    """Number of times that a thread of the process has begun or ended to run; None: the thread is running, or has ended."""
    try:
        with open(f"/proc/self/task/{thread}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
    except OSError:
        return None
    if not fields["State"].strip().startswith("S"):
        return None
    return fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]


def _is_in_collective(ident):
    """Whether the last call of a thread is a function of torch.distributed, DistributedDataParallel or the backward pass."""
    frame = sys._current_frames().get(ident)
    return frame is not None and (frame.f_code.co_filename.startswith(_collective_folders()) or
                                  frame.f_code is Training._exchange_stop.__code__)


def _store_address(environment):
    return environment["MASTER_ADDR"], int(environment["MASTER_PORT"])


class _Group:
    """The default process group of the process, with new members in each generation of the job."""

    def __init__(self, backend, options, notices):
        self.backend, self.options, self.notices = backend, options, notices
        self.store = self.store_address = None
        self.store_peers = set()  # where the connections of the store lead to
        self.own_ports = set()
        self.ports = set()
        self.training = None
        self.members = []  # published by each rank
        self.is_cut = False
        self.cut_connections = []  # copies of their descriptors
        self.thread = threading.get_ident(), threading.get_native_id()  # calls the collectives
        self.watched = None  # generation of the last cut: a look at the thread follows
        notices.cut = self._cut

    def _cut(self, place):
        self.is_cut = True  # first: collectives ended by the next lines are checked afterwards
        if place and self.store_address not in (None, _store_address({**os.environ, **place})):
            _close_all(_shut_connections(lambda own, peer: peer in self.store_peers))  # the store's host may be silent
        if self.backend == "nccl":
            if dist.is_initialized():
                dist.group.WORLD.abort()
        else:
            self.cut_connections += _shut_connections(lambda own, peer: own[1] in self.ports or peer[1] in self.ports, socket.SHUT_RD)
            if self.watched != self.notices.generation:
                self.watched = self.notices.generation
                threading.Thread(target=self._end_when_stuck, args=(self.watched,), name="crun-cut", daemon=True).start()

    def _end_when_stuck(self, generation):
        """Ends the process when the thread has been blocked in a collective for _STUCK_S since the cut. A thread that computes, reads
        data, or waits for the next generation is left alone."""
        ident, native = self.thread
        before, since = None, time.monotonic()
        while self.notices.generation == generation:
            now = _switches(native) if _is_in_collective(ident) else None
            if now is None or now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since >= _STUCK_S:
                os.write(2, f"crun_launch.worker: rank {os.environ['RANK']}: {self.backend} keeps this process in a collective "
                            f"{_STUCK_S:.0f} s after its connections were cut; it ends, to be replaced\n".encode())
                os._exit(_STUCK_EXIT_CODE)
            time.sleep(_SLICE_S)

    def _open(self):
        """Makes the group at the store named by the environment, unless there is a group already."""
        address = _store_address(os.environ)
        if address == self.store_address:
            return
        if dist.is_initialized():
            if self.training:
                self.training.unwrap()  # first: a reducer that holds the group last can block (holding the interpreter's lock)
            dist.destroy_process_group()
        before = _listening_ports()
        self.store = dist.TCPStore(*address, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)
        self.store_peers = _peers_of_port(address[1])
        dist.init_process_group(self.backend, store=self.store, rank=int(os.environ["RANK"]),
                                world_size=int(os.environ["WORLD_SIZE"]), enable_reconfigure=True, **self.options)
        self.own_ports = _listening_ports() - before
        self.store_address = address

    def _exchange(self, key, text):
        """Publishes a text and returns the texts of all ranks. A newer generation ends the wait."""
        delay_s, until = 0.001, time.monotonic() + _MEETING_S
        prefix, rank, n = f"crun/{self.notices.generation}/{key}/", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store.set(prefix + str(rank), text)
        texts = []
        for peer in range(n):
            while not self.store.check([prefix + str(peer)]):
                delay_s = min(1.2 * delay_s, 0.02)  # a new process may import for seconds, and needs the processor
                if self.notices.wait(lambda: self.notices.failed_rank is not None, delay_s):
                    raise PeerFailed("another worker failed while the group was formed", self.notices.failed_rank)
                if time.monotonic() > until:
                    raise PeerFailed(f"rank {peer} has not come to the meeting of generation {self.notices.generation} "
                                     f"within {_MEETING_S:.0f} s", peer)
            texts.append(self.store.get(prefix + str(peer)).decode())
        return texts

    def meet(self):
        """Forms the group of the present generation with all its ranks."""
        self.notices.send(_JOINING, int(os.environ["RANK"]))
        self._open()
        mine = {"handle": dist._get_reconfigure_handle(), "ports": sorted(self.own_ports),
                "step": self.training.steps if self.training else -1}
        self.members = [json.loads(text) for text in self._exchange("member", json.dumps(mine))]
        _close_all(self.cut_connections)  # no rank at the meeting writes to old connections
        self.ports = {port for member in self.members for port in member["ports"]}
        self._connect()
        self.check()  # a notice before the last connection was made has not cut all: nothing would end a wait

    def _connect(self):
        """Makes the connections of the group. PyTorch may refuse while NCCL still revokes the connections of the generation before: try
        again, and after _REVOKE_S leave the place to a new process."""
        until = time.monotonic() + _REVOKE_S
        while True:
            try:
                dist._reconfigure(self.notices.generation + 1, [member["handle"] for member in self.members],
                                  timeout=_RECONFIGURE).wait()
                return
            except RuntimeError as error:
                if _IN_PROGRESS not in str(error):
                    raise
            if self.notices.wait(lambda: self.notices.failed_rank is not None, _SLICE_S):
                raise PeerFailed("another worker failed while the group was formed", self.notices.failed_rank)
            if time.monotonic() > until:
                os.write(2, f"crun_launch.worker: rank {os.environ['RANK']}: NCCL still revokes the communicator of the generation before, "
                            f"{_REVOKE_S:.0f} s after all ranks met; this process ends, to be replaced\n".encode())
                os._exit(_STUCK_EXIT_CODE)

    def check(self):
        """Raises PeerFailed unless all collectives ended so far had the data of all ranks."""
        error = None
        if self.backend == "nccl":
            torch.cuda.current_stream().synchronize()
            error = getattr(dist.group.WORLD._get_backend(_device()).get_error(), "name", "SUCCESS")
        if self.is_cut or self.notices.failed_rank is not None or error not in (None, "SUCCESS"):
            raise PeerFailed("another worker failed")

    def has_state(self):
        """Whether some rank was in the job before the present generation."""
        return max(member["step"] for member in self.members) >= 0

    def source(self):
        """The rank with the newest state; None: all ranks are new, or all have the same state."""
        steps = [member["step"] for member in self.members]
        return None if min(steps) == max(steps) else steps.index(max(steps))

    def behind(self):
        """The ranks to take the state over."""
        newest = max(member["step"] for member in self.members)
        return [rank for rank, member in enumerate(self.members) if member["step"] < newest]

    def next_generation(self):
        """Waits for crun's decision and enters the generation decided."""
        n = self.notices
        until = time.monotonic() + _GENERATION_S
        while not n.wait(lambda: n.next_place or n.stop or n.ended, _SLICE_S) and not _stop_seen:
            if time.monotonic() > until:
                break
        if not n.next_place:
            raise PeerFailed("another worker failed, and crun has begun no generation that this one stays in",
                             n.failed_rank if n.failed_rank is not None else -1)
        generation, place = n.next_place
        os.environ.update(place)
        with n.changed:
            n.begin(generation)
            self.is_cut = False

    def is_peer_failure(self, error):
        """Whether crun confirms a peer's failure as the cause of the error."""
        if not isinstance(error, RuntimeError):
            return False
        text = str(error)
        from_transport = isinstance(error, (PeerFailed, dist.DistError)) or any(
            part in text for part in ("gloo", "Gloo", "NCCL", "Connection", "Broken pipe", "Timed out", "ncclComm"))
        n = self.notices
        return n.wait(lambda: n.failed_rank is not None, _CONFIRM_S if from_transport else 0.1)


_group = None


def _why_not(backend):
    """Reason why the group cannot be changed in place; None: no obstacle."""
    if not hasattr(dist, "_reconfigure"):
        return f"PyTorch {torch.__version__} cannot change a process group in place (2.14 can)"
    if ":" in backend:
        return f"a process group of several backends ({backend}) cannot be changed in place; name one"
    if backend == "gloo" or backend == "nccl" and os.environ.get("TORCH_DIST_USE_NCCL2") != "0":
        return None
    return f"the backend {backend} cannot change a process group in place"


def init_process_group(backend=None, **options):
    """Like torch.distributed.init_process_group(), with ranks and address from crun. The group can take in new members while the
    process goes on: see Training. Without crun, or with an older PyTorch, the same as torch's own function."""
    global _group
    notices = _notices()
    if notices is None or "RANK" not in os.environ or {"init_method", "store", "rank", "world_size"} & set(options):
        dist.init_process_group(backend, **options)
        return
    name = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    why = _why_not(name)
    if why:
        if os.environ["RANK"] == "0":
            print(f"crun_launch.worker: {why}; after a failure all workers are restarted", file=sys.stderr, flush=True)
        dist.init_process_group(backend, **options)
        return
    if name == "nccl" and not torch.cuda.is_available():
        raise RuntimeError('the backend "nccl" needs a CUDA device, and PyTorch finds none in this process; '
                           'use "gloo", or look at CUDA_VISIBLE_DEVICES and the driver')
    _group = _Group(name, options, notices)
    _group.meet()


# ---- state as text and tensors

def _encode(value, path, tensors):
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["value", value]
    for kind, name in ((collections.Counter, "counter"), (dict, "dict")):
        if isinstance(value, kind):
            return [name, [[_encode(k, path, tensors), _encode(v, f"{path}[{k!r}]", tensors)] for k, v in value.items()]]
    for kind, name in ((list, "list"), (tuple, "tuple")):
        if isinstance(value, kind):
            return [name, [_encode(v, f"{path}[{i}]", tensors) for i, v in enumerate(value)]]
    raise TypeError(f"{path} is a {type(value).__name__}: state that goes to another rank is made of tensors, numbers, texts, "
                    "lists, tuples and dictionaries")


_CONTAINERS = {"counter": lambda items: collections.Counter(dict(items)), "dict": dict, "list": list, "tuple": tuple}


def _decode(node, tensors):
    kind, content = node[0], node[1]
    if kind == "tensor":
        return next(tensors)
    if kind == "value":
        return content
    if kind in ("list", "tuple"):
        return _CONTAINERS[kind](_decode(v, tensors) for v in content)
    return _CONTAINERS[kind]([(_decode(k, tensors), _decode(v, tensors)) for k, v in content])


def _shapes(node):
    """(dtype, shape) of the tensors in the order of _encode()."""
    if node[0] == "tensor":
        yield getattr(torch, node[1]), node[2]
    elif node[0] != "value":
        for item in node[1]:
            for child in (item if node[0] in ("dict", "counter") else [item]):
                yield from _shapes(child)


def _send_or_receive(state, source, device):
    """The state of the source on all ranks. `state` is looked at on the source only."""
    is_source = dist.get_rank() == source
    tensors, text = [], b""
    if is_source:
        text = json.dumps(_encode(state, "state", tensors)).encode()
    size = torch.tensor([len(text)], dtype=torch.int64, device=device)
    dist.broadcast(size, source)
    _group.check()
    body = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device) if is_source else torch.empty(
        int(size.item()), dtype=torch.uint8, device=device)
    dist.broadcast(body, source)
    _group.check()
    tree = json.loads(bytes(body.cpu().tolist()))
    if not is_source:
        tensors = [torch.empty(shape, dtype=dtype, device=device) for dtype, shape in _shapes(tree)]
    _broadcast_all(tensors, source, device, is_source)
    _group.check()
    return state if is_source else _decode(tree, iter(tensors))


def _broadcast_all(tensors, source, device, is_source):
    """In pieces of one type of numbers and bounded size."""
    by_type = collections.defaultdict(list)
    for t in tensors:
        by_type[t.dtype].append(t)
    for dtype, same in by_type.items():
        piece, n_bytes = [], 0
        for t in [*same, None]:
            if piece and (t is None or n_bytes + t.nbytes > _CHUNK_BYTES):
                _broadcast_piece(piece, dtype, source, device, is_source)
                piece, n_bytes = [], 0
            if t is not None:
                piece.append(t)
                n_bytes += t.nbytes


def _broadcast_piece(piece, dtype, source, device, is_source):
    flat = torch.cat([t.reshape(-1).to(device) for t in piece]) if is_source else torch.empty(
        sum(t.numel() for t in piece), dtype=dtype, device=device)
    if flat.numel() == 0:
        return
    # bool and other types unknown to some backends travel as bytes
    dist.broadcast(flat.view(torch.uint8), source)
    if not is_source:
        at = 0
        for t in piece:
            t.copy_(flat[at:at + t.numel()].view(t.shape))
            at += t.numel()


def _outline(value):
    """The same for equal state, in whatever order dictionaries were filled: tensors are types, shapes and sums of bits."""
    if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized):
        return [str(value.dtype), list(value.shape)]
    if isinstance(value, torch.Tensor):
        value = value.resolve_conj().resolve_neg()
        t = (torch.view_as_real(value) if value.is_complex() else value).detach().reshape(-1).contiguous()
        bits = t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])
        return [str(value.dtype), list(value.shape), bits.sum(dtype=torch.int64).item()]
    if isinstance(value, dict):
        return sorted(([str(_outline(k)), _outline(v)] for k, v in value.items()), key=lambda item: item[0])
    if isinstance(value, (list, tuple)):
        return [_outline(v) for v in value]
    if isinstance(value, float):
        return float(value).hex()
    return json.dumps(value) if isinstance(value, (str, int)) else str(value)  # of an enum the value, as sent


# ---- random generators

def _random_state():
    state = {"torch": torch.get_rng_state(), "python": torch.tensor(random.getstate()[1], dtype=torch.int64),
             "gauss": random.getstate()[2]}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *(x.item() if hasattr(x, "item") else x for x in rest)]
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state):
    torch.set_rng_state(state["torch"].cpu())
    random.setstate((3, tuple(state["python"].tolist()), state["gauss"]))
    if "numpy" in state and "numpy" in sys.modules:
        name, keys, *rest = state["numpy"]
        sys.modules["numpy"].random.set_state((name, keys.cpu().numpy().astype("uint32"), *rest))
    if "cuda" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"].cpu())


def _pack(state):
    """The bytes for crun's memory file: a text, then the tensors in turn."""
    tensors = []
    text = json.dumps(_encode(state, "random", tensors)).encode()
    return struct.pack("<I", len(text)) + text + b"".join(t.cpu().contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)


def _unpack(data):
    size, = struct.unpack_from("<I", data)
    tree, at, tensors = json.loads(data[4:4 + size]), 4 + size, []
    for dtype, shape in _shapes(tree):
        t = torch.empty(shape, dtype=dtype)
        t.view(torch.uint8).copy_(torch.frombuffer(bytearray(data[at:at + t.nbytes]), dtype=torch.uint8))
        tensors.append(t)
        at += t.nbytes
    return _decode(tree, iter(tensors))


# ---- samples

# Arguments of a DataLoader set by _Samples; all others are the user's.
_OWN_ARGUMENTS = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator"}
_inner_loaders = weakref.WeakKeyDictionary()  # the user's loader: the inner loader in its place


class _Samples:
    """The samples of an epoch, dealt to the ranks as DistributedSampler and DataLoader do, from a common position on."""

    def __init__(self, loader, epoch, position):
        b = loader.batch_sampler
        s = getattr(b, "sampler", None)
        plain = torch.utils.data.distributed.DistributedSampler
        if type(b) is not torch.utils.data.BatchSampler or getattr(type(s), "__iter__", None) is not plain.__iter__:
            raise ValueError("batches() needs a DataLoader with sampler=DistributedSampler(...), and batch_size=... or a BatchSampler; it "
                             f"has a {type(b).__name__} of a {type(s).__name__}, which deals samples in a way of its own")
        self.loader, self.position, self.seed = loader, position, s.seed + epoch
        self.n_samples, self.shuffle, self.drop_last = len(s.dataset), s.shuffle, s.drop_last
        self.batch_size, self.drop_batch = b.batch_size, b.drop_last

    def each(self):
        """How many samples of the epoch each rank still gets."""
        left, world_size = self.n_samples - self.position, dist.get_world_size()
        n = left // world_size if self.drop_last else -(-left // world_size)
        return n - n % self.batch_size if self.drop_batch else n

    def own(self):
        """The samples of the own rank: as many on all ranks, so samples from the beginning of the list may be used again."""
        g = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(self.n_samples, generator=g).tolist() if self.shuffle else list(range(self.n_samples))
        world_size = dist.get_world_size()
        n = self.each() * world_size
        own = order[self.position:] + order * (n // self.n_samples + 1)
        return own[dist.get_rank():n:world_size]

    def batches(self):
        """(batch, number of samples that all ranks use with the batch). Unless the loader has a generator, the process's generators are left
        alone. A single inner loader for each loader of the user: the loader's processes may be persistent."""
        old, position = self.loader, self.position
        if old not in _inner_loaders:
            names = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
            kept = {name: getattr(old, name) for name in names if name not in _OWN_ARGUMENTS and hasattr(old, name)}
            _inner_loaders[old] = torch.utils.data.DataLoader(batch_size=self.batch_size, sampler=[],
                                                              generator=old.generator or torch.Generator(), **kept)
        new = _inner_loaders[old]
        new.sampler[:] = self.own()
        if old.generator is None:
            new.generator.manual_seed(self.seed + position)
        together = dist.get_world_size() * self.batch_size
        for batch in new:
            n = min(together, self.n_samples - position)
            position += n
            yield batch, n


# ---- stop

_stop_seen = False


def _on_stop(signum, frame):
    global _stop_seen
    _stop_seen = True


class _Limit:
    """The end of the job's time in Slurm. The variable has the end as of the start of the job (seconds since 1970), and `scontrol
    update TimeLimit=` moves the end. So a thread asks Slurm near the end, in rank 0 alone: each question goes to the controller."""

    def __init__(self):
        end = os.environ.get("SLURM_JOB_END_TIME", "")
        self.end = int(end) if end.isdigit() else 0
        self.is_asking = self.is_near = False

    def ask(self):
        end = 0
        with contextlib.suppress(OSError, subprocess.SubprocessError, LookupError, ValueError):
            job = subprocess.run(["scontrol", "show", "job", "-o", os.environ["SLURM_JOB_ID"]], capture_output=True, text=True, timeout=10,
                                 env={**os.environ, "SLURM_TIME_FORMAT": "standard"}).stdout
            end = int(time.mktime(time.strptime(job.partition(" EndTime=")[2].split()[0], "%Y-%m-%dT%H:%M:%S")))
        self.is_near = end <= self.end  # also without an answer
        self.end = max(end, self.end)
        self.is_asking = False

    def look(self):
        rank = dist.get_rank() if "torch.distributed" in sys.modules and dist.is_initialized() else int(os.environ.get("RANK", 0))
        if self.end and rank == 0 and not self.is_asking and not self.is_near and time.time() > self.end - _BEFORE_LIMIT_S:
            self.is_asking = True
            threading.Thread(target=self.ask, daemon=True).start()
        return self.is_near


_limit = functools.cache(_Limit)


def _is_limit_near():
    """Whether the job's time in Slurm ends soon."""
    return _limit().look()


def _wants_stop():
    n = _notices()
    return bool(_stop_seen or n and n.stop or _is_limit_near())


def _catch_stop():
    """SIGTERM and SIGUSR1 end the process unless the program looks at stop_requested(). Only the main thread may set a handler."""
    if not _notices() or threading.current_thread() is not threading.main_thread():
        return
    with open("/proc/self/status") as status:  # faulthandler's are not known to the signal module
        caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    for s in (signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(s) is signal.SIG_DFL and not caught >> (s - 1) & 1:
            signal.signal(s, _on_stop)


def stop_requested():
    """Whether the job is to save its state and end: after SIGTERM, after SIGUSR1 (Slurm's --signal=USR1@SECONDS), or a minute before the end of
    the job's time in Slurm. All ranks get the same answer at the same step. With Training the call costs nothing; without
    Training the call is a collective that every rank has to make. False outside crun. From the first call on both signals do not
    end the process."""
    if not _notices():
        return False
    _catch_stop()
    if _group and _group.training:
        return _group.training.stop_agreed
    if "torch.distributed" not in sys.modules or not dist.is_initialized():
        return _wants_stop()
    flag = torch.tensor([int(_wants_stop())], dtype=torch.int32, device=_device())
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag.item())


def _device():
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


# ---- training

class Training:
    """DistributedDataParallel around `model`, and the rest of the state: the optimizer, and under names of your choice anything with
    state_dict() and load_state_dict() (scheduler=..., ema=...). Call a Training like the model.

    on_regroup: called with the Training after each change of the group, to make other groups again.
    ddp: further arguments of DistributedDataParallel, as a dictionary."""

    def __init__(self, model, optimizer, on_regroup=None, ddp=None, **parts):
        self.module, self.optimizer, self.on_regroup = model, optimizer, on_regroup
        self.parts = {"model": model, "optimizer": optimizer, **parts}
        self.options = dict(ddp or {})
        self.steps = 0            # done, by all ranks together
        self.epoch = 0
        self.position = 0         # how many samples of the epoch are used
        self.n_regroups = 0       # number of changes of the group since the process began
        self.stop_agreed = False
        self.is_applied = False   # optimizer.step() was called in the present step
        self.ddp = None
        self.order = []           # order of gradients becoming ready, as indices of parameters
        self.order_hooks = []
        self.pending_stop = None
        self.taken = 0
        self.taken_from = None    # since the last change of the group: the rank that gave the others their state
        optimizer.register_step_pre_hook(self._before_applied)
        optimizer.register_step_post_hook(self._on_applied)
        self._keep()
        if _group:
            self._enter(False)
        elif dist.is_initialized():
            self._wrap()
        if _group:
            _group.training = self

    def __call__(self, *args, **kwargs):
        return (self.ddp or self.module)(*args, **kwargs)

    def _before_applied(self, optimizer, args, kwargs):
        if _group and _group.backend == "nccl":
            _group.check()

    def _on_applied(self, optimizer, args, kwargs):
        self.is_applied = True

    # -- committed state

    def _buffers(self):
        return [b for b in self.module.buffers() if b is not None]

    def _keep(self):
        """Keeps the state that a step changes before optimizer.step(), at the end of each step. A dropped step takes the state back."""
        self.kept_buffers = [b.detach().clone() for b in self._buffers()]
        self.kept_random = _random_state()
        memory = _memory() if _group else None
        if memory:
            memory.keep(self.steps, _pack(self.kept_random))
        beat(self.steps)

    def _digest(self):
        """A text for each part of the state common to all ranks: all but buffers and random generators."""
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        parts["model"] = list(self.module.parameters())
        parts["progress"] = [self.steps, self.epoch, self.position]
        return {name: hashlib.sha256(json.dumps(_outline(value)).encode()).hexdigest()[:16] for name, value in parts.items()}

    def _are_replicas_equal(self):
        """After a take-over: whether the ranks that took the state over still have the state. False: the group has changed meanwhile."""
        source, self.taken_from = self.taken_from, None
        if source is None:
            return True
        mine = self._digest() if dist.get_rank() in (source, *_group.behind()) else {}
        try:
            digests = [json.loads(text) for text in _group._exchange("digest", json.dumps(mine))]
        except RuntimeError as error:
            if not _group.is_peer_failure(error):
                raise
            self._recover()
            return False
        for rank in _group.behind():
            wrong = [name for name in digests[source] if digests[rank].get(name) != digests[source][name]]
            if wrong:
                raise ValueError(f"rank {rank} has changed its {' and '.join(wrong)} since it took the state of the job over from rank {source}: "
                                 "load a snapshot in front of Training(), not behind it, and change what Training() was given in "
                                 "`with step()` only")
        return True

    def _roll_back(self):
        with torch.no_grad():
            for buffer, kept in zip(self._buffers(), self.kept_buffers):
                buffer.copy_(kept)
        _set_random_state(self.kept_random)
        self.optimizer.zero_grad(set_to_none=True)
        self.module.zero_grad(set_to_none=True)

    def _commit(self):
        self.steps += 1
        self.position += self.taken
        self.taken = 0
        self.is_applied = False
        self._end_order()
        self._keep()

    # -- the group

    def _enter(self, is_next):
        """Meets, takes the state over, and wraps the model; again, when a peer fails meanwhile. PeerFailed: there is no next
        generation for the process."""
        while True:
            if is_next:
                _group.next_generation()
            try:
                if is_next:
                    _group.meet()
                    self.n_regroups += 1
                self._take_over()
                self._wrap()
                if self.on_regroup:
                    self.on_regroup(self)
                    self._learn_ports()
                _group.notices.send(_READY, dist.get_rank(), _KEEPS_STORE)
                return
            except RuntimeError as error:
                if _group.training is not self or not _group.is_peer_failure(error):
                    raise  # a new process cannot come in: crun starts another
            is_next = True

    def _learn_ports(self):
        """Groups made by the callback listen on further ports."""
        if _group.backend == "gloo":
            _group.own_ports |= self._new_ports()
            for text in _group._exchange("ports", json.dumps(sorted(_group.own_ports))):
                _group.ports |= set(json.loads(text))

    def _new_ports(self):
        return _listening_ports() - self.ports_before

    def _take_over(self):
        self.ports_before = _listening_ports() if self.on_regroup else set()
        source = self.taken_from = _group.source()
        if source is None:
            return
        state = {}
        if dist.get_rank() == source:
            state = {"steps": self.steps, "epoch": self.epoch, "position": self.position, "order": self.order,
                     "random": self.kept_random,
                     "parts": {name: part.state_dict() for name, part in self.parts.items()}}
        state = _send_or_receive(state, source, _device())
        if dist.get_rank() == source or self.steps == state["steps"] and _group.training is self:
            return
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        for name in ("steps", "epoch", "position", "order"):
            setattr(self, name, state[name])
        memory = _memory()
        kept = memory.kept(self.steps) if memory else None
        _set_random_state(_unpack(kept) if kept else state["random"])
        self._keep()

    def unwrap(self):
        if self.ddp is not None:
            self.ddp.reducer._remove_autograd_hooks()
        self.ddp = None

    def _wrap(self):
        self.unwrap()
        self.pending_stop = None
        options = dict(self.options)
        if _group and _group.has_state():
            options["init_sync"] = False  # an interrupted sync would leave parameters of two steps
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.module, **options)
        if _group and self.order:
            self._replay_order()
        elif _group:
            self._record_order()

    # In its first step the reducer fills its buckets in the order of declaration, and later in the order of gradients becoming
    # ready in the first step. The order of addition depends on the buckets, so a new reducer learns the order of the old reducer.

    def _trained(self):
        return [p for p in self.module.parameters() if p.requires_grad]

    def _record_order(self):
        self.seen_order = []
        self.order_hooks = [p.register_post_accumulate_grad_hook(lambda _, i=i: self.seen_order.append(i))
                            for i, p in enumerate(self._trained())]

    def _end_order(self):
        if not self.order_hooks:
            return
        for hook in self.order_hooks:
            hook.remove()
        self.order_hooks = []
        if sorted(self.seen_order) == list(range(len(self._trained()))):
            self.order = self.seen_order

    def _replay_order(self):
        """A backward pass of zeros, parameter by parameter."""
        parameters = self._trained()
        if len(self.order) != len(parameters) or self.options.get("find_unused_parameters") or self.options.get("static_graph"):
            return
        self.ddp.reducer.prepare_for_backward([])
        for i in self.order:
            p = parameters[i]
            torch.autograd.backward([p], [torch.zeros_like(p)])
        self.module.zero_grad(set_to_none=True)

    # -- steps

    def epochs(self, first, last):
        """Like range(first, last), from the epoch of the other ranks on."""
        if self.epoch < first:
            self.epoch, self.position = first, 0
        if self.ddp is None and dist.is_initialized():
            self._wrap()
        while self.epoch < last:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch:
                self.epoch, self.position = epoch + 1, 0
        self.unwrap()  # a reducer that outlives the group can block the process (see _Group._open); the module is called from here on

    def batches(self, loader):
        """The rest of the epoch's batches. After a change of the group the iterator goes on from the common position of the ranks."""
        if not _group:
            sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)
            yield from loader
            return
        epoch, before = self.epoch, None
        while self.epoch == epoch and self.n_regroups != before:
            before = self.n_regroups
            if not self._are_replicas_equal():
                continue
            samples = _Samples(loader, epoch, self.position)
            if samples.each() <= 0:
                return
            for batch, self.taken in samples.batches():
                yield batch
                if self.n_regroups != before:
                    break

    @contextlib.contextmanager
    def step(self):
        """A step of training. A peer's failure in the step is handled before the end of `with`: the next batch of batches() does the step again."""
        try:
            yield self
            self._commit()
            self._exchange_stop()
        except RuntimeError as error:
            if not _group or not _group.is_peer_failure(error):
                raise
            self._recover()

    def _recover(self):
        if self.is_applied:
            self._commit()  # the parameters already belong to the next step: the present step is done
        self.taken = 0
        self._roll_back()
        self._enter(True)

    def _exchange_stop(self):
        """Starts a small sum, and reads the sum of the step before: all ranks read the same at the same step."""
        if not _group:
            return
        if self.pending_stop:
            work, flag = self.pending_stop
            self.pending_stop = None
            work.wait()
            stop = bool(flag.item())
            _group.check()
            self.stop_agreed = stop
        flag = torch.tensor([int(_wants_stop())], dtype=torch.int32, device=_device())
        self.pending_stop = (dist.all_reduce(flag, dist.ReduceOp.MAX, async_op=True), flag)
