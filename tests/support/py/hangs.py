"""Jobs of four ranks in which one hangs in a known way, and what crun reports on them."""

import contextlib
import ctypes
import html
import os
import pathlib
import random
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import jobs
import nodes

KINDS = ("skip", "order", "loader", "sleep", "python", "c", "stop", "disk", "raised", "store")
RANKS = 4
WORKER = jobs.ROOT / "tests/workers/hang_job.py"


# ---- a file system that never answers a read (fuse(4), without a library)

_IN, _OUT = "<IIQQIIII", "<IiQ"  # fuse_in_header, fuse_out_header
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT = 1, 2, 3, 14, 15, 26


def _attributes(node):
    mode, size = (0o040755, 0) if node == 1 else (0o100644, 1 << 20)
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(operation, node):
    if operation == _INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 1 << 16, 0, 12, 12, 1 << 16, 1, 0, 0, 0, *[0] * 7)
    if operation == _LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 3600, 3600, 0, 0) + _attributes(2)
    if operation == _GETATTR:
        return struct.pack("<QII", 3600, 0, 0) + _attributes(node)
    if operation == _OPEN:
        return struct.pack("<QII", 1, 0, 0)
    return b""


def _serve(device, is_over):
    while not is_over.is_set():
        try:
            if not select.select([device], [], [], 0.1)[0]:
                continue
            request = os.read(device, 1 << 17)
        except BlockingIOError:
            continue
        except OSError:
            return  # unmounted
        _, operation, unique, node, *_ = struct.unpack_from(_IN, request)
        if operation in (_FORGET, _READ, 42):  # 42: batch_forget
            continue
        body = _answer(operation, node)
        with contextlib.suppress(OSError):
            os.write(device, struct.pack(_OUT, 16 + len(body), 0, unique) + body)


@contextlib.contextmanager
def silent_disk(folder):
    """Mounts it; needs root. Readers wait until the end: in state S until they get a signal, then in state D."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    options = f"fd={device},rootmode=40755,user_id=0,group_id=0".encode()
    if libc.mount(b"silent", str(folder).encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    is_over = threading.Event()
    server = threading.Thread(target=_serve, args=(device, is_over), daemon=True)
    server.start()
    try:
        yield
    finally:
        libc.umount2(str(folder).encode(), 2)  # MNT_DETACH
        is_over.set()
        server.join()
        os.close(device)  # ends every request, when nobody else has the device open


# ---- one job

class Report:
    """late_s: seconds from the time-out to the report; culprit: whether it names that rank first."""

    def __init__(self, late_s, culprit, groups):
        self.late_s, self.culprit, self.groups = late_s, culprit, groups


def read_events(path):
    return jobs.whole_lines(path)


def find_event(path, name):
    return next((e for e in read_events(path) if e["event"] == name), None)


def _disk_of(kind, folder):
    return silent_disk(folder / "fuse") if kind == "disk" else contextlib.nullcontext()


START_S = 240  # of four ranks that import PyTorch on a busy machine


def run_hang(kind, folder, timeout_s=5, wait_s=90, options=()):
    """Starts the job with a rank by chance as the culprit, waits for the report, so long from the moment the hang began, ends the job."""
    with _disk_of(kind, folder):
        return _run(kind, folder, timeout_s, random.randrange(RANKS), wait_s, options)


def start(kind, folder, timeout_s, culprit, options=(), **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    with open(folder / "output", "wb") as output:
        return subprocess.Popen([jobs.crun(), f"--nproc-per-node={RANKS}", f"--hang-timeout={timeout_s}", "--shutdown-timeout=3",
                                 f"--log-dir={folder / 'logs'}", f"--event-log={folder / 'events'}", *options,
                                 "--no-python", sys.executable, str(WORKER), kind, str(culprit), str(folder)],
                                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)


def _run(kind, folder, timeout_s, culprit, wait_s, options):
    p = start(kind, folder, timeout_s, culprit, options)
    try:
        has_begun = jobs.wait_until(lambda: (folder / "began").exists() or p.poll() is not None, START_S, 0.05)
        if has_begun:
            jobs.wait_until(lambda: find_event(folder / "events", "hang") or p.poll() is not None, wait_s, 0.05)
        event = find_event(folder / "events", "hang")
        if not event or not (folder / "began").exists():
            what = "no report on the hang" if has_begun else f"the ranks did not begin within {START_S} s"
            raise AssertionError(f"{kind}, rank {culprit}: {what}\n{(folder / 'output').read_text()[-3000:]}")
        began = int((folder / "began").read_text())
        late_s = (event["monotonic_ns"] - began) / 1e9 - timeout_s
        return Report(late_s, event.get("rank") == culprit, event["groups"])
    finally:
        end(p)


# ---- the same jobs with PyTorch's debug server

FRAME = re.compile(r'File "[^"]*/([^"/]+)", line (\d+ in \S+)')


class Page:
    """What the page of stacks shows. seconds: until it came; None: it did not. stacks: by rank, the main thread's functions; "": none
    was shown for it."""

    def __init__(self, seconds, stacks):
        self.seconds, self.stacks = seconds, stacks

    def names(self, culprit):
        """Whether a reader can tell: all others show the same stack, and the culprit another one, or none."""
        others = {stack for rank, stack in self.stacks.items() if rank != culprit}
        return len(self.stacks) == RANKS and len(others) == 1 and others != {""} and self.stacks[culprit] not in others


def _stacks_of(page):
    """The main thread is the last one that faulthandler prints."""
    blocks = re.split(r"<h2>Rank (\d+):", html.unescape(page))[1:]
    return {int(rank): "\n".join(f"{name}:{line}" for name, line in FRAME.findall(block.rsplit("Thread 0x", 1)[-1]))
            for rank, block in zip(blocks[::2], blocks[1::2])}


def _ask_debug_server(port, wait_s):
    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/stacks", timeout=wait_s) as answer:
            return Page(time.monotonic() - began, _stacks_of(answer.read().decode()))
    except OSError:
        return Page(None, {})


def run_debug_server(kind, folder, timeout_s=5, wait_s=30):
    """The job without crun's own watch; its page of stacks is asked for so long after the hang began."""
    culprit, port = random.randrange(RANKS), nodes.free_port()
    with _disk_of(kind, folder):
        p = start(kind, folder, 0, culprit, CRUN_TESTS_DEBUG_PORT=str(port))
        try:
            jobs.wait_for(lambda: (folder / "began").exists() or p.poll() is not None, START_S)
            time.sleep(timeout_s)
            if p.poll() is not None:
                raise AssertionError(f"{kind}: the job has ended\n{(folder / 'output').read_text()[-3000:]}")
            page = _ask_debug_server(port, wait_s)
            return page, page.names(culprit)
        finally:
            end(p)


def end(p):
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if p.poll() is None:
            p.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(8)
            time.sleep(0.1)
