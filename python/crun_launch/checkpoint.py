"""State of PyTorch jobs of any parallelism (FSDP2, HSDP, tensor and pipeline parallel, DDP) in memory that outlives the workers.

crun lends each worker memory and keeps the memory from one generation of workers to the next. A state that lies there after each
step costs a failure one step and no disk. A training loop changes in two lines:

    from crun_launch.checkpoint import Memory

    memory = Memory({"model": model, "optim": optimizer})     # 1: behind init_process_group()
    for step in memory.steps(n):                              # 2: instead of range(n)
        loss(model(batch(step))).backward()
        optimizer.step()
        optimizer.zero_grad()

steps(n) loads the newest state of the job, yields the numbers of the steps that are left, and keeps the state after each step. A
loop of another form calls both halves:

    step = memory.restore()      # steps done; 0: no state is kept
    memory.save(step)            # behind each step, with the number of steps done

Scripts with torch.distributed.checkpoint (DCP) change an argument of dcp.save, dcp.async_save and dcp.load:

    dcp.save(state, checkpoint_id=f"{folder}/step-{step}", storage_writer=StorageWriter(folder))
    reader = StorageReader(folder)
    if reader.step is not None:                               # the step that dcp.load is about to load
        dcp.load(state, storage_reader=reader)

The number at the end of checkpoint_id is the step. Without a checkpoint_id the steps are counted.

With a folder crun also writes FOLDER/step-N, beside the training: every `folder_every` steps, at the end of the job, and when the job
is asked to stop. The files are DCP's own: dcp.load(checkpoint_id=FOLDER/step-N) reads them without crun. Outside crun, or
with a crun that keeps no blocks of state, the same calls write and read FOLDER/step-N themselves.

Memory keeps modules (parameters, persistent buffers), optimizers, anything else with state_dict() and load_state_dict(), and the
random generators of each rank. Replicated state lies on one rank, as in DCP; a value that differs between ranks needs a key of its own
for each rank. The next generation may have another world size. FSDP1 and optimizers with nested states need dcp.save.

Only optimizer.step() may change parameters and states of optimizers. A thread copies them behind the next forward and backward pass,
and optimizer.step() waits for the end of the copy. save() itself copies all other state. From GPUs the copy goes by pinned memory
on a stream of its own. A script that changes parameters elsewhere calls memory.wait() first.

The memory of a node has two steps (three where copies go to another node), the folder two. A rank replaces the older step only when
all ranks have the newer step: save() starts a small sum over all ranks, and the thread waits for the result.

A bad state: `check` is a function that returns False for a bad state, or True for a search for NaN in the parameters. Memory calls
`check` for two steps after a restore, and keeps no state meanwhile. A bad state is rejected by all ranks, and ends them with
RuntimeError. The next generation gets an earlier step, or the step of the folder. reject() is for scripts with checks of their own.

State from memory is data of other processes. Tensors and values are loaded with weights_only, and metadata by an unpickler that knows
the classes of DCP's metadata alone. A checksum covers every byte.
"""

import atexit
import collections
import contextlib
import ctypes
import dataclasses
import errno
import functools
import io
import mmap
import os
import pickle
import queue
import random
import re
import socket
import struct
import sys
import threading
import warnings
import zipfile
import zlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, FileSystem, FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.checkpoint.utils import _create_file_view
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

# DCP's, about calls in which no rank needs another one.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning)

__all__ = ["Memory", "StorageReader", "StorageWriter"]

# proto/state_blocks.h
_TABLE_AT, _BLOCKS_AT, _ALIGNMENT = 131072, 1 << 20, 4096
_TABLE_MAGIC, _FILES_MAGIC = b"CRUNBLK1", b"CRUNFIL1"
_TABLE_HEAD, _SLOT_SIZE, _SLOTS_MAX, _HELD_AT, _CRC_AT = 16, 64, 3, 48, 52
_SLOT = struct.Struct("<QIIQQIIIII12x")
_RECORD = struct.Struct("<IIIIQIIQIIII8x")
_FILE = struct.Struct("<QQ48s")
_CRC32, _FILES, _NOT_OWN_MEMORY = 1, 1, 1            # kinds of checksum, content and source
_SIZE, _WHOLE, _STEP, _BLOCK, _VERDICT, _FOLDER, _REJECT, _, _HELLO = range(1, 10)

_METADATA = ".metadata"
_FILES_AT = 192                                      # of the first file in a block: behind the heads of two files
_CHECKED_STEPS = 2                                   # after a restore, with `check`
_END_S = 5.0                                         # for the last block, when the interpreter ends
_RANDOM_SIZE = 32768                                 # of a rank's generators: PyTorch, Python, NumPy, CUDA

_Slot = collections.namedtuple("_Slot", "number rank generation offset bytes checksum kind world_size content held")
_Answer = collections.namedtuple("_Answer", "size kind id status step rank generation bytes checksum checksum_kind tier arg")
_Block = collections.namedtuple("_Block", "view file offset")    # the bytes; the same in a file, from an offset on


@functools.cache
def _note(text):
    """One line for the user, once for each text."""
    print(f"crun_launch.checkpoint: {text}", file=sys.stderr, flush=True)


def _aligned(n, unit=64):
    return -(-n // unit) * unit


# ---- the memory of this worker, and crun

class _Blocks:
    """The worker's file of CRUN_STATE_FD from its table on, and the socket to crun. See proto/state_blocks.h."""

    def __init__(self, service_fd, state_fd):
        self.state = state_fd
        os.fstat(state_fd)
        if os.pread(state_fd, 8, _TABLE_AT) not in (_TABLE_MAGIC, bytes(8), b""):
            _note("the state is not kept in memory: the memory file is in use by another runtime")
            raise OSError
        self.rank, self.world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.generation = int(os.environ.get("CRUN_GENERATION") or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self.asking, self.n_asked = threading.Lock(), 0
        self.view = self.address = None
        self.loaded = {}            # rank: the _Block that is being loaded
        self.chosen = None          # step that the generation continues from; -1: none; None: not asked
        self.chosen_world = self.chosen_generation = 0
        self.newest = 0             # step of the newest save
        self.whole = 0              # number of the newest block that this rank has and all ranks may continue from
        self.kept = 0               # number of the newest block that all ranks have: stays until they have a newer one
        for fd in (service_fd, state_fd):
            os.set_inheritable(fd, False)
        self.socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hello = self._record(_HELLO, rank=self.rank, generation=self.generation, arg=int(os.environ.get("LOCAL_RANK", 0)))
        with far, socket.socket(fileno=os.dup(service_fd)) as service:
            socket.send_fds(service, [hello], [far.fileno()])

    # -- records

    @staticmethod
    def _record(kind, id=0, status=0, step=0, rank=0, generation=0, bytes=0, arg=0, text=""):
        text = text.encode()
        return _RECORD.pack(_RECORD.size + len(text), kind, id, status, step, rank, generation, bytes, 0, 0, 0, arg) + text

    def tell(self, kind, **fields):
        """A record without an answer."""
        with self.asking, contextlib.suppress(OSError):   # crun has ended: this process is about to
            self.socket.send(self._record(kind, **fields))

    def ask(self, kind, may_fail=0, **fields):
        """Returns the answer and the descriptors that came with it. OSError: the answer's status but for may_fail, or crun has ended."""
        with self.asking:
            self.n_asked += 1
            self.socket.send(self._record(kind, id=self.n_asked, **fields))
            while True:
                data, fds, _, _ = socket.recv_fds(self.socket, 4096, 1)
                if len(data) < _RECORD.size:
                    raise OSError("crun has ended")
                answer = _Answer(*_RECORD.unpack_from(data))
                if answer.id == self.n_asked:
                    break       # else "step N is in the folder"
        if answer.status not in (0, may_fail) and kind != _SIZE or kind == _BLOCK and not fds:
            raise OSError(answer.status, os.strerror(answer.status))
        return answer, fds

    # -- the table

    def slots(self):
        head = os.pread(self.state, _TABLE_HEAD + _SLOTS_MAX * _SLOT_SIZE, _TABLE_AT)
        if head[:8] != _TABLE_MAGIC:
            return []
        n = min(struct.unpack_from("<I", head, 8)[0], _SLOTS_MAX)
        found = [head[_TABLE_HEAD + i * _SLOT_SIZE:_TABLE_HEAD + (i + 1) * _SLOT_SIZE] for i in range(n)]
        return [_Slot(*_SLOT.unpack(b)) if zlib.crc32(b[:_HELD_AT]) == struct.unpack_from("<I", b, _CRC_AT)[0] else
                _Slot(0, *_SLOT.unpack(b)[1:]) for b in found]

    def _put(self, slot, at, data):
        os.pwrite(self.state, data, _TABLE_AT + _TABLE_HEAD + slot * _SLOT_SIZE + at)

    def _grow(self, size):
        """Makes the file at least `size` bytes long. False: there is no memory for that."""
        is_new = not self.slots()
        if is_new or os.fstat(self.state).st_size < size:
            answer, _ = self.ask(_SIZE, bytes=size)
            if answer.status:
                _note(f"no memory for {size >> 20} MiB of state, {answer.arg} MiB would fit: the state is not kept")
                return False
            if is_new:
                os.pwrite(self.state, _TABLE_MAGIC + struct.pack("<II", min(max(answer.arg, 2), _SLOTS_MAX), 0), _TABLE_AT)
        return self._map(size)

    def _map(self, size):
        """False: the file is shorter."""
        n = os.fstat(self.state).st_size
        if n >= size and (self.view is None or len(self.view) < size):
            data = mmap.mmap(self.state, n)
            self.view, self.address = memoryview(data), ctypes.addressof(ctypes.c_char.from_buffer(data))
        return n >= size

    def _room(self, slot, size):
        """The first place in the file with `size` bytes free of all other slots."""
        taken = [(s.offset, s.offset + s.bytes) for i, s in enumerate(self.slots()) if i != slot and (s.number or s.held)]
        places = [_BLOCKS_AT, *(_aligned(end, _ALIGNMENT) for _, end in sorted(taken))]
        return next(at for at in places if all(at + size <= first or end <= at for first, end in taken))

    def begin(self, step, size, kept):
        """A slot and a place for a block of `size` bytes; None: there is none. kept: number of the newest block that all ranks have.
        Blocks of later steps, which a generation before has left, go first; then the oldest."""
        self.kept, self.loaded = max(self.kept, kept), {}
        slots = self.slots() if self._grow(_BLOCKS_AT + size) else []
        for i in sorted(range(len(slots)), key=lambda i: (slots[i].number <= step, slots[i].number)):
            if slots[i].number == self.kept > 0:
                continue
            self._put(i, 0, bytes(8))
            if self.slots()[i].held:        # crun is reading the block
                self._put(i, 0, struct.pack("<Q", slots[i].number))
                continue
            offset = self._room(i, size)
            return (i, offset) if self._grow(offset + size) else None
        return None

    def finish(self, place, step, size):
        slot, offset = place
        checksum = zlib.crc32(self.view[offset:offset + size])
        block = _Slot(step + 1, self.rank, self.generation, offset, size, checksum, _CRC32, self.world_size, _FILES, 0)
        entry = _SLOT.pack(*block)[:_HELD_AT]
        self._put(slot, 8, entry[8:])
        self._put(slot, _CRC_AT, struct.pack("<I", zlib.crc32(entry)))
        self._put(slot, 0, struct.pack("<Q", step + 1))
        self.newest, self.whole = step, step + 1
        self.tell(_WHOLE, step=step, rank=self.rank, arg=slot)

    # -- loading

    def choose(self):
        """The step that all ranks continue from, once each rank has its blocks and has verified them; -1: none is in memory."""
        if self.chosen is None:
            answer, _ = self.ask(_STEP, may_fail=errno.EAGAIN)
            while answer.bytes and answer.status == errno.EAGAIN:
                status, self.loaded, rank = 0, {}, self.rank
                self.chosen, self.chosen_world, self.chosen_generation = answer.bytes - 1, answer.arg, answer.generation
                try:
                    for rank in range(self.rank, self.chosen_world, self.world_size):
                        self._load(rank)
                except OSError as error:
                    _note(f"step {self.chosen}, rank {rank}: {error}")
                    status = errno.EBADMSG
                answer, _ = self.ask(_VERDICT, step=self.chosen, rank=rank, generation=self.chosen_generation, status=status,
                                     may_fail=errno.EAGAIN)
            self.chosen, self.kept, self.newest = answer.bytes - 1, answer.bytes, max(answer.bytes - 1, 0)
            self.whole = self.kept if any(s.number == self.kept and s.rank == self.rank for s in self.slots()) else 0
        return self.chosen

    def _load(self, rank):
        if rank not in self.loaded:
            self.loaded[rank] = rank == self.rank and self._own_block() or self._ask_block(rank)
        return self.loaded[rank]

    def _own_block(self):
        """The block in this worker's own memory, without a copy. None: crun has to find the block."""
        wanted = self.chosen + 1, self.rank, self.chosen_generation, _CRC32
        for s in self.slots():
            if (s.number, s.rank, s.generation, s.kind) == wanted and self._map(s.offset + s.bytes):
                view = self.view[s.offset:s.offset + s.bytes]
                if zlib.crc32(view) == s.checksum:
                    return _Block(view, open(f"/proc/self/fd/{self.state}", "rb"), s.offset)
                _note(f"step {self.chosen} of rank {self.rank} is damaged in this node's memory: the next copy is taken")
        return None

    def _ask_block(self, rank):
        for source in (0, _NOT_OWN_MEMORY):
            answer, fds = self.ask(_BLOCK, rank=rank, step=self.chosen, generation=self.chosen_generation, arg=source)
            file = open(fds[0], "rb")
            if not 0 < answer.bytes <= os.fstat(fds[0]).st_size or answer.generation != self.chosen_generation:
                raise OSError(errno.EBADMSG, "another block was sent")
            view = memoryview(mmap.mmap(fds[0], answer.bytes, access=mmap.ACCESS_READ))
            if answer.checksum_kind != _CRC32 or zlib.crc32(view) == answer.checksum:   # other kinds are crun's to verify
                return _Block(view, file, 0)
            _note(f"step {self.chosen} of rank {rank} is damaged, tier {answer.tier}: the next copy is taken")
        raise OSError(errno.EBADMSG, "no whole copy is left")

    def find(self, rank, name):
        """The block of a rank, and offset and size of a file in the block; FileNotFoundError: no such file."""
        block = self._load(rank)
        n = struct.unpack_from("<I", block.view, 8)[0] if block.view[:8] == _FILES_MAGIC else 0
        for i in range(min(n, 64)):
            offset, size, text = _FILE.unpack_from(block.view, _TABLE_HEAD + i * _FILE.size)
            if text.rstrip(b"\0") == name.encode():
                return block, offset, size
        raise FileNotFoundError(f"the block of rank {rank} has no file {name}")


@functools.cache
def _blocks():
    """None outside crun, and where crun keeps no blocks."""
    service, state = os.environ.get("CRUN_BLOCKS_FD", ""), os.environ.get("CRUN_STATE_FD", "")
    if os.environ.get("GROUP_WORLD_SIZE", "1") != "1":  # a rank needs blocks of ranks on other nodes, which crun does not fetch yet
        _note("memory keeps the state of jobs on one node; this job has several, and uses its folder alone")
        return None
    with contextlib.suppress(OSError):
        return _Blocks(int(service), int(state)) if service.isdigit() and state.isdigit() else None


# ---- blocks: the bytes of DCP's own files

def _is_plain(tensor):
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _checked(key, data):
    """Bytes of torch.save; TypeError: torch.load(weights_only=True) does not read them."""
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except pickle.UnpicklingError as error:
        raise TypeError(f"{key}: weights_only does not load such a value, but numbers, texts, tensors, lists, dictionaries") from error
    return data


def _saved(key, value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return _checked(key, buffer.getvalue())


@functools.cache
def _template(size, stride, dtype):
    """The bytes of torch.save in front of and behind the raw data of such a tensor."""
    buffer, before = io.BytesIO(), torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        tensor = torch.empty_strided(size, stride, dtype=dtype)
        torch.save(tensor, buffer)
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(buffer) as archive:
        header = next(i.header_offset for i in archive.infolist() if i.filename.endswith("data/0"))
        data = buffer.getvalue()
    n_name, n_extra = struct.unpack_from("<HH", data, header + 26)     # of the record's local header
    at = header + 30 + n_name + n_extra
    return data[:at], data[at + tensor.untyped_storage().nbytes():]


class _Layout:
    """Where everything lies in the block of a rank."""

    def __init__(self, rank):
        self.name = f"__{rank}_0.distcp"
        self.fixed = []         # (offset, bytes)
        self.tensors = []       # (offset, bytes, size, stride, dtype)
        self.values = []        # (offset, bytes reserved)
        self.end = _FILES_AT

    def add_tensor(self, index, tensor):
        like = torch.empty_like(tensor, device="meta")
        head, tail = _template(like.size(), like.stride(), like.dtype)
        first, data = self.end, self.end + len(head)
        self.tensors.append((data, tensor.nbytes, like.size(), like.stride(), like.dtype))
        length = len(head) + tensor.nbytes + len(tail)
        self.end = _aligned(first + length)
        self.fixed += [(first, head), (data + tensor.nbytes, tail.ljust(self.end - data - tensor.nbytes, b"\0"))]
        return self._result(index, first, length)

    def add_value(self, index, data):
        """Room for bytes of torch.save, and for somewhat more: torch.load accepts zeros behind an archive."""
        first, length = self.end, _aligned(len(data) + 256, 256)
        self.values.append((first, length))
        self.end = first + length
        return self._result(index, first, length)

    def _result(self, index, first, length):
        return WriteResult(index=index, size_in_bytes=length, storage_data=_StorageInfo(self.name, first - _FILES_AT, length))

    def close(self, metadata=None):
        """metadata: the bytes of the file of that name."""
        files = [(_FILES_AT, self.end - _FILES_AT, self.name)]
        if metadata:
            files.append((self.end, len(metadata), _METADATA))
            self.fixed.append((self.end, metadata))
            self.end += len(metadata)
        head = _FILES_MAGIC + struct.pack("<II", len(files), 0)
        head += b"".join(_FILE.pack(offset, size, name.encode()) for offset, size, name in files)
        self.fixed.insert(0, (0, head.ljust(_FILES_AT, b"\0")))

    def fits(self, tensors, values):
        return (all(t.shape == size and t.dtype == dtype for t, (_, _, size, _, dtype) in zip(tensors, self.tensors))
                and all(len(v) <= n for v, (_, n) in zip(values, self.values)))

    def copy(self, view, address, tensors, values):
        """Writes the block to memory. The copies of tensors leave the interpreter to other threads."""
        for at, data in self.fixed:
            view[at:at + len(data)] = data
        for (at, n), data in zip(self.values, values):
            view[at:at + n] = data.ljust(n, b"\0")
        for (at, n, size, stride, dtype), tensor in zip(self.tensors, tensors):
            if not tensor.is_contiguous() and tensor.stride() != stride:
                tensor = torch.empty_strided(size, stride, dtype=dtype).copy_(tensor)
            ctypes.memmove(address + at, tensor.data_ptr(), n)


def _write(blocks, step, layout, tensors, values, kept, on_copied=lambda: None):
    """Leaves the step out where no slot is free."""
    try:
        place = blocks.begin(step, layout.end, kept)
        if place:
            offset = place[1]
            layout.copy(blocks.view[offset:offset + layout.end], blocks.address + offset, tensors, values)
    finally:
        on_copied()
    if place:
        blocks.finish(place, step, layout.end)


# ---- torch.distributed.checkpoint

def _number_of(path):
    """The number at the end of a path."""
    found = re.search(r"(\d+)/*$", os.fspath(path)) if path is not None else None
    return int(found[1]) if found else None


def _newest_in(folder):
    """The newest step of which a folder has everything; None: none."""
    with contextlib.suppress(OSError):
        steps = [int(n[5:]) for n in os.listdir(folder) if re.fullmatch(r"step-\d+", n)]
        return max((s for s in steps if os.path.exists(os.path.join(folder, f"step-{s}", _METADATA))), default=None)
    return None


def _step_folder(folder, step):
    return os.path.join(folder, f"step-{step}")


class StorageWriter(FileSystemWriter):
    """For dcp.save and dcp.async_save: state goes to the memory that crun keeps. All ranks of the job take part in each save."""

    def __init__(self, folder=None):
        super().__init__(folder or os.curdir)
        self.folder, self.blocks = folder, _blocks()
        self.step = self.name = None     # of the newest save
        if self.blocks and folder:
            self.blocks.tell(_FOLDER, text=os.path.abspath(folder))

    def reset(self, checkpoint_id=None):
        super().reset(checkpoint_id)
        self.name = checkpoint_id        # of the next save

    def set_up_storage_writer(self, *args, **kwargs):
        super().set_up_storage_writer(*args, **kwargs)
        if not (self.name or self.folder or self.blocks):
            raise ValueError("outside crun StorageWriter needs a folder, or dcp.save a checkpoint_id")
        before = max(self.blocks.newest if self.blocks else 0, _newest_in(self.folder or os.curdir) or 0)
        number = _number_of(self.name)
        if self.blocks and number is not None and number <= self.blocks.newest:
            raise ValueError(f"checkpoint_id ends with {number}, and step {self.blocks.newest} is saved: the number has to grow with each save")
        self.step = before + 1 if number is None else number
        if not self.name:
            self.path = self.fs.init_path(_step_folder(self.folder or os.curdir, self.step))
        self.name = None

    def prepare_local_plan(self, plan):
        """The plan carries the number of the newest block that this rank has whole."""
        return dataclasses.replace(plan, storage_data=self.blocks.whole) if self.blocks else super().prepare_local_plan(plan)

    def prepare_global_plan(self, plans):
        if not self.blocks:
            return super().prepare_global_plan(plans)
        if len(plans) != self.blocks.world_size:
            raise ValueError("StorageWriter needs all ranks of the job: no process_group, no_dist or use_collectives=False")
        kept = min(plan.storage_data for plan in plans)
        return [dataclasses.replace(plan, storage_data=kept) for plan in plans]

    def write_data(self, plan, planner):
        if not self.blocks:
            return super().write_data(plan, planner)
        self.layout, self.tensors, self.values, self.kept = _Layout(self.blocks.rank), {}, {}, plan.storage_data
        results = [self._add(item, planner.resolve_data(item)) for item in plan.items]
        if self.blocks.rank:        # rank 0 writes in finish(), with the metadata
            self._store(None)
        future = Future()
        future.set_result(results)
        return future

    def _add(self, item, data):
        if item.type != WriteItemType.BYTE_IO and _is_plain(data):
            self.tensors[item.index] = data.detach()
            return self.layout.add_tensor(item.index, data.detach())
        is_bytes = item.type == WriteItemType.BYTE_IO
        self.values[item.index] = _checked(item.index.fqn, data.getvalue()) if is_bytes else _saved(item.index.fqn, data)
        return self.layout.add_value(item.index, self.values[item.index])

    def _store(self, metadata):
        self.layout.close(metadata)
        tensors = [t.cpu() for t in self.tensors.values()]
        _write(self.blocks, self.step, self.layout, tensors, list(self.values.values()), self.kept)

    def finish(self, metadata, results):
        if not self.blocks:
            super().finish(metadata, results)
            return
        metadata.version, metadata.storage_meta = CURRENT_DCP_VERSION, self.storage_meta()
        metadata.storage_data = {r.index: r.storage_data for of_rank in results for r in of_rank}
        self._store(pickle.dumps(metadata))


class _MetadataUnpickler(pickle.Unpickler):
    """Metadata of another process: the classes of DCP's metadata, and types of PyTorch."""

    CLASSES = {
        "torch.distributed.checkpoint.metadata": "Metadata MetadataIndex TensorStorageMetadata BytesStorageMetadata ChunkStorageMetadata "
                                                 "TensorProperties StorageMeta _MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem": "_StorageInfo",
        "torch.serialization": "_get_layout", "torch": "Size", "pathlib": "PosixPath", "collections": "OrderedDict",
    }

    def find_class(self, module, name):
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if name not in self.CLASSES.get(module, "").split() and not is_dtype:
            raise pickle.UnpicklingError(f"metadata names {module}.{name}")
        return getattr(sys.modules[module], name)


class _BlockFiles(FileSystem):
    """The files in blocks, by their names."""

    def __init__(self, blocks):
        self.blocks = blocks

    @contextlib.contextmanager
    def create_stream(self, path, mode):
        name = os.path.basename(path)
        found = re.match(r"__(\d{1,9})_", name)
        block, offset, size = self.blocks.find(int(found[1]) if found else 0, name)
        yield _create_file_view(block.file, block.offset + offset, min(size, max(len(block.view) - offset, 0)))


class _SafePlanner:
    """A planner of DCP that gets only values which weights_only accepts."""

    def __init__(self, planner):
        self.planner = planner

    def __getattr__(self, name):
        return getattr(self.planner, name)

    def load_bytes(self, item, value):
        torch.load(value, weights_only=True)
        value.seek(0)
        self.planner.load_bytes(item, value)


class StorageReader(FileSystemReader):
    """For dcp.load: state from memory where crun has a step of the job there, else from the newest step of the folder.

    `step`: the step that dcp.load loads; None: there is none."""

    def __init__(self, folder=None):
        super().__init__(folder or os.curdir)
        self.folder, self.blocks = folder, _blocks()
        self.is_memory = bool(self.blocks) and self.blocks.choose() >= 0
        self.step = self.blocks.chosen if self.is_memory else _newest_in(folder) if folder else None
        if self.is_memory:
            self.fs = _BlockFiles(self.blocks)
        elif self.step is not None:
            self.path = self.fs.init_path(_step_folder(folder, self.step))

    def reset(self, checkpoint_id=None):
        if checkpoint_id and not self.is_memory:
            self.step = _number_of(checkpoint_id)
            super().reset(checkpoint_id)

    def read_metadata(self, *args, **kwargs):
        if not self.is_memory:
            return super().read_metadata(*args, **kwargs)
        for rank in dict.fromkeys((self.blocks.rank % self.blocks.chosen_world, 0)):    # DCP's coordinator alone has dcp.save's
            with contextlib.suppress(FileNotFoundError):
                block, offset, size = self.blocks.find(rank, _METADATA)
                return _MetadataUnpickler(io.BytesIO(block.view[offset:offset + size])).load()
        raise FileNotFoundError("no block has metadata")

    def read_data(self, plan, planner):
        return super().read_data(plan, _SafePlanner(planner) if self.is_memory else planner)


# ---- random generators: a tensor of a fixed size, under a key of its own for each rank

def _random_state():
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = name, keys.tolist(), *rest
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = struct.pack("<I", buffer.tell()) + buffer.getvalue()
    return torch.frombuffer(bytearray(data.ljust(_RANDOM_SIZE, b"\0")), dtype=torch.uint8)


def _set_random_state(tensor):
    data = tensor.numpy().tobytes()
    state = torch.load(io.BytesIO(data[4:4 + struct.unpack_from("<I", data)[0]]), weights_only=True)
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])


# ---- the state of a training loop

def _unwrapped(module):
    """A module without the wrappers that change names only: DDP, torch.compile."""
    inner = module._modules.get("module" if isinstance(module, DistributedDataParallel) else "_orig_mod")
    return module if inner is None else _unwrapped(inner)


def _local(tensor):
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()


class _State:
    """The user's dictionary of modules, optimizers and other parts as the tree of names and values that DCP saves and loads."""

    def __init__(self, parts):
        self.parts = parts
        self.modules = {n: _unwrapped(v) for n, v in parts.items() if isinstance(v, torch.nn.Module)}
        self.optimizers = {n: v for n, v in parts.items() if isinstance(v, torch.optim.Optimizer)}
        self.random_key = f"random.{dist.get_rank() if dist.is_initialized() else 0}"
        self.ddp = {n: v for n, v in parts.items() if isinstance(v, DistributedDataParallel)}
        self.orders = {}                 # of gradients becoming ready, for each DDP, as indices of parameters
        for name in self.ddp:
            self._record_order(name)

    def names(self, optimizer):
        """The parameters of an optimizer by their names in the modules."""
        own = {id(p) for g in optimizer.param_groups for p in g["params"]}
        found = {n: {k: p for k, p in m.named_parameters() if id(p) in own} for n, m in self.modules.items()}
        has_one = sum(map(bool, found.values())) == 1
        names = {k if has_one else f"{n}.{k}": p for n, parameters in found.items() for k, p in parameters.items()}
        if len({id(p) for p in names.values()}) < len(own):
            raise ValueError("an optimizer has parameters of a module that Memory was not given")
        return names

    def tree(self):
        """Everything that is saved, with the tensors themselves."""
        tree = {}
        for name, part in self.parts.items():
            if name in self.modules:
                tree[name] = dict(self.modules[name].state_dict())
            elif name in self.optimizers:
                tree[name] = self._optimizer_tree(part)
            else:
                tree[name] = part.state_dict() if hasattr(part, "state_dict") else part
        tree[self.random_key] = _random_state()
        return tree | ({"orders": dict(self.orders)} if self.ddp else {})

    def _optimizer_tree(self, optimizer):
        names = self.names(optimizer)
        return {"state": {n: dict(optimizer.state[p]) for n, p in names.items() if p in optimizer.state},
                "param_groups": [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]}

    # -- saving

    def getters(self, mappings):
        """For each key of the flattened tree a function that finds the value, from the flattened tree if need be, and whether only
        optimizer.step() changes the value."""
        named = {name: self.names(o) for name, o in self.optimizers.items()}
        return {key: self._getter(key, path, self.parts.get(path[0]), named) for key, path in mappings.items()}

    def _getter(self, key, path, part, named):
        if path[0] in self.modules and len(path) == 2:
            owner, _, name = path[1].rpartition(".")
            with contextlib.suppress(AttributeError):     # a name that a wrapper has changed
                module = self.modules[path[0]].get_submodule(owner)
                if name in module._parameters:
                    return (lambda flat: module._parameters[name]), True
                if name in module._buffers:
                    return (lambda flat: module._buffers[name]), False
        elif path[0] in self.optimizers and path[1] == "state" and len(path) == 4 and path[2] in named[path[0]]:
            state, parameter, name = part.state, named[path[0]][path[2]], path[3]
            if name in state.get(parameter, {}):
                return (lambda flat: part.state[parameter][name]), isinstance(state[parameter][name], torch.Tensor)
        elif path[0] in self.optimizers and path[1] == "param_groups":
            return (lambda flat: functools.reduce(lambda value, k: value[k], path[2:], part.param_groups)), False
        return (lambda flat: flat()[key]), False

    def shape(self):
        """Changes when an optimizer gets or loses state."""
        return [(len(o.state), sum(map(len, o.state.values())), len(o.param_groups)) for o in self.optimizers.values()]

    # -- DDP: sums depend on the order in which a reducer fills its buckets, which is the order of gradients in its first step

    def _trained(self, name):
        return [p for p in self.modules[name].parameters() if p.requires_grad]

    def _record_order(self, name):
        order = self.orders[name] = []
        parameters = self._trained(name)
        for i, p in enumerate(parameters):
            p.register_post_accumulate_grad_hook(lambda _, i=i: order.append(i) if len(order) < len(parameters) else None)

    def _replay_orders(self, orders):
        """A backward pass of zeros, parameter by parameter."""
        for name, order in orders.items():
            parameters = self._trained(name)
            if sorted(order) == list(range(len(parameters))):
                self.orders[name][:] = order
                self.ddp[name].reducer.prepare_for_backward([])
                for i in order:
                    torch.autograd.backward([parameters[i]], [torch.zeros_like(parameters[i])])
                self.modules[name].zero_grad(set_to_none=True)

    # -- loading

    def target(self, metadata):
        """The tree into which DCP loads. Modules are loaded in place; states of optimizers are made as the metadata names them."""
        tree = self.tree()
        del tree[self.random_key]
        if self.random_key in metadata.state_dict_metadata:
            tree[self.random_key] = torch.zeros(_RANDOM_SIZE, dtype=torch.uint8)
        for name, optimizer in self.optimizers.items():
            tree[name]["state"] = self._optimizer_target(name, optimizer, metadata)
        return tree

    def _optimizer_target(self, name, optimizer, metadata):
        names, state = self.names(optimizer), {}
        options = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        for key, path in metadata.planner_data.items():
            if path[:2] != (name, "state") or path[2] not in names:
                continue
            if len(path) != 4:
                raise TypeError(f"{key}: Memory does not know nested states of optimizers; use dcp.load with StorageReader")
            parameter = names[path[2]]
            value = self._empty(metadata.state_dict_metadata[key], parameter, options[id(parameter)])
            state.setdefault(path[2], {})[path[3]] = value
        return state

    @staticmethod
    def _empty(described, parameter, options):
        if not isinstance(described, TensorStorageMetadata):
            return 0
        dtype = described.properties.dtype
        if described.size == parameter.shape and described.size:
            return torch.zeros_like(parameter.detach(), dtype=dtype)
        if len(described.chunks) > 1:
            raise TypeError("Memory does not know how a state of this optimizer is divided; use dcp.load with StorageReader")
        is_on_device = len(described.size) > 0 or options.get("fused") or options.get("capturable")
        return torch.zeros(described.size, dtype=dtype, device=parameter.device if is_on_device else "cpu")

    def apply(self, tree):
        """Gives the loaded values to the parts."""
        for name, part in self.parts.items():
            if name in self.modules:
                self.modules[name].load_state_dict(tree[name])
            elif name in self.optimizers:
                self._apply_optimizer(part, tree[name])
            elif hasattr(part, "load_state_dict"):
                part.load_state_dict(tree[name])
            else:
                self.parts[name] = tree[name]
        self._replay_orders(tree.get("orders", {}))
        if self.random_key in tree:
            _set_random_state(tree[self.random_key])

    def _apply_optimizer(self, optimizer, tree):
        """Without load_state_dict(), which changes the types of states to those of the parameters."""
        names = self.names(optimizer)
        optimizer.state.clear()
        for name, state in tree["state"].items():
            optimizer.state[names[name]] = dict(state)
        for group, loaded in zip(optimizer.param_groups, tree["param_groups"]):
            group.update(loaded)


class _Planning(StorageWriter):
    """Takes DCP's plan for a rank and writes nothing: Memory writes by the plan after each step."""

    def _store(self, metadata):
        pass


class Memory:
    """Keeps the state of a training loop from step to step: see the head of this file.

    state: modules, optimizers and others with state_dict(), under names of your choice. every: steps from one copy to the next.
    folder: where steps lie on disk, every `folder_every` steps (0: the last step alone). All ranks make the same calls."""

    def __init__(self, state, every=1, check=None, folder=None, folder_every=0):
        self.every, self.folder, self.folder_every, self.blocks = every, folder, folder_every, _blocks()
        self.check = self._has_no_nan if check is True else check
        self.parts, self.group = _State(state), None
        if dist.is_initialized():
            is_gloo = any(b in dist.get_backend_config() for b in ("cpu:gloo", "gloo"))
            self.group = dist.group.WORLD if is_gloo else dist.new_group(backend="gloo")
        elif int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError("Memory comes behind init_process_group()")
        self.plan = self.restored = self.stream = None
        self.is_planned, self.n_left_out = False, 0     # n_left_out: steps that this rank has not kept
        self.copied, self.done = threading.Event(), threading.Event()
        self.copied.set()
        self.done.set()
        self.orders = queue.SimpleQueue()
        if self.blocks:
            if folder:
                self.blocks.tell(_FOLDER, text=os.path.abspath(folder), arg=folder_every)
            register_optimizer_step_pre_hook(lambda *_: self._wait_for_copy())
            threading.Thread(target=self._work, name="crun-memory", daemon=True).start()
            atexit.register(self.done.wait, _END_S)

    # -- the loop

    def steps(self, n):
        """The numbers of the steps that are left of range(n), from the newest state of the job on."""
        step = self.restore()
        while step < n:
            yield step
            step += 1
            self.save(step, step == n)
        self.wait()

    def save(self, step, is_last=False):
        """Keeps the state behind a step. step: the number of steps done; is_last: whatever `every` is."""
        if self._is_suspicious(step) or step % self.every and not is_last:
            return
        if self.blocks:
            self._save_to_memory(step)
        elif self.folder and (is_last or self.folder_every and step % self.folder_every == 0):
            dcp.save(self.parts.tree(), checkpoint_id=_step_folder(self.folder, step), storage_writer=StorageWriter(),
                     process_group=self.group)

    def wait(self):
        """Returns when the copy of the newest save() is done."""
        self.done.wait()

    def reject(self):
        """Declares the state that this process began with bad, with all later steps. End the worker with an error afterwards: the next
        generation gets an earlier step, or the folder's."""
        if self.blocks and self.restored is not None:
            self.blocks.ask(_REJECT, step=self.restored)  # the process may end behind it

    # -- loading

    def restore(self):
        """Loads the newest state of the job, and returns the number of steps done; 0: there is none."""
        reader = StorageReader(self.folder)
        step = reader.step
        if not reader.is_memory:      # the newest one that each rank sees in the folder
            step, = self._min(-1 if step is None else step)
            if step < 0:
                return 0
            reader.reset(_step_folder(self.folder, step))
        tree = self.parts.target(reader.read_metadata())
        dcp.load(tree, storage_reader=reader, no_dist=True)
        self.parts.apply(tree)
        self.restored = step
        return step

    def _min(self, *numbers):
        tensor = torch.tensor(numbers, dtype=torch.int64)
        if self.group:
            dist.all_reduce(tensor, dist.ReduceOp.MIN, group=self.group)
        return tensor.tolist()

    def _is_suspicious(self, step):
        if not self.check or self.restored is None or not self.restored < step <= self.restored + _CHECKED_STEPS:
            return False
        if not self._min(int(self.check() is not False))[0]:
            self.reject()
            raise RuntimeError(f"the state of step {self.restored} is bad, and rejected")
        return True

    def _has_no_nan(self):
        return all(bool(torch.isfinite(_local(p)).all()) for m in self.parts.modules.values() for p in m.parameters())

    # -- saving

    def _save_to_memory(self, step):
        self.done.wait()
        if not self.is_planned:
            self._make_plan()
        sources = self._sources()
        numbers = torch.tensor([self.blocks.whole, int(sources is not None)], dtype=torch.int64)
        work = dist.all_reduce(numbers, dist.ReduceOp.MIN, group=self.group, async_op=True) if self.group else None
        self.copied.clear()
        self.done.clear()
        self.orders.put((step, sources, numbers, work))

    def _make_plan(self):
        """A collective: DCP plans, and each rank keeps the layout of its block. All blocks have the metadata of all ranks."""
        tree, writer = self.parts.tree(), _Planning()
        metadata = dcp.save(tree, storage_writer=writer, process_group=self.group, no_dist=not self.group)
        writer.layout.close(pickle.dumps(metadata))
        getters = self.parts.getters(flatten_state_dict(tree)[1])
        self.plan, self.is_planned = writer.layout, True
        self.tensors = [getters[index.fqn] for index in writer.tensors]
        self.values = [(index.fqn, getters[index.fqn][0]) for index in writer.values]
        self.shape, self.cached, self.host = self.parts.shape(), {}, None

    def _sources(self):
        """Tensors and bytes for the block; None: the state no longer has the form of the plan."""
        if self.parts.shape() != self.shape:
            return None
        flat = functools.cache(lambda: flatten_state_dict(self.parts.tree())[0])
        try:
            tensors = [(_local(get(flat)), is_late) for get, is_late in self.tensors]
            values = [self._value(k, get(flat)) for k, get in self.values]
        except (KeyError, IndexError):
            return None
        tensors = [t if is_late else t.clone() for t, is_late in tensors]
        if not self.plan.fits(tensors, values):
            return None
        return self._to_host(tensors), values

    def _value(self, key, value):
        """Bytes of torch.save; of the save before, for an equal number or text."""
        text = repr(value) if isinstance(value, (bool, int, float, str, type(None))) else None
        before = self.cached.get(key)
        if before is None or text is None or before[0] != text:
            self.cached[key] = before = text, _saved(key, value)
        return before[1]

    def _to_host(self, tensors):
        """From GPUs: starts the copy to pinned memory, on a stream of its own."""
        if not any(t.is_cuda for t in tensors):
            return tensors
        if self.host is None:
            self.stream, self.event = torch.cuda.Stream(), torch.cuda.Event()
            self.host = [torch.empty_strided(size, stride, dtype=dtype, pin_memory=True) for _, _, size, stride, dtype in self.plan.tensors]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for host, tensor in zip(self.host, tensors):
                host.copy_(tensor, non_blocking=True)
                if tensor.is_cuda:
                    tensor.record_stream(self.stream)
            self.event.record()
        return self.host

    def _wait_for_copy(self):
        """In front of optimizer.step()."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_event(self.event)   # the GPU waits, not this thread
        else:
            self.copied.wait()

    def _work(self):
        while True:
            step, sources, numbers, work = self.orders.get()
            have_met = not work
            try:
                if work:
                    have_met = work.wait()    # an error: a peer has failed, and this process is about to end
                self._copy(step, sources, *numbers.tolist())
            except Exception as error:
                if have_met:                  # the training goes on
                    _note(f"the state is not kept: {error}")
            self.n_left_out += self.blocks.whole != step + 1
            self.copied.set()
            self.done.set()

    def _copy(self, step, sources, kept, is_planned):
        self.is_planned = bool(is_planned)
        if sources:
            if self.stream is not None:
                self.event.synchronize()
            _write(self.blocks, step, self.plan, *sources, kept, self.copied.set)
