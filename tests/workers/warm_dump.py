"""Prints what a worker can find out about itself, as one JSON object in the file that the last argument names."""

import atexit
import faulthandler
import inspect
import json
import multiprocessing
import os
import re
import random
import resource
import signal
import subprocess
import sys
import threading
import traceback

import warm_beside  # beside this script

OWN_NUMBERS = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "CRUN_INSTANCE")


def proc(name):
    with open("/proc/self/" + name, "rb") as file:
        return file.read().decode("utf-8", "backslashreplace")


def status(*names):
    lines = dict(line.split(":\t", 1) for line in proc("status").splitlines() if ":\t" in line)
    return {name: lines.get(name) for name in names}


def descriptors():
    found = {}
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            link = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # of the folder that was listed
        flags = next(line for line in proc(f"fdinfo/{fd}").splitlines() if line.startswith("flags"))
        found[fd] = [link.split("[")[0] if "[" in link else link.partition("_")[0], os.get_inheritable(fd), flags]
    return found


def in_child(method):
    """A child of multiprocessing finds the script, as it does for a worker that was executed."""
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue, 21))
    process.start()
    got = queue.get()
    process.join()
    return [got, process.exitcode]


def child(queue, value):
    queue.put([2 * value, __name__, os.path.basename(sys.argv[0]), multiprocessing.parent_process() is not None])


def stack():
    return [line for line in "".join(traceback.format_stack()).splitlines()]


def dump():
    libc = __import__("ctypes").CDLL(None)
    value = __import__("ctypes").c_int()
    libc.prctl(2, __import__("ctypes").byref(value), 0, 0, 0)
    code = "import sys, os; print(sys.argv, os.environ.get('PYTHONPATH'), 'crun_zygote' in sys.modules)"
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": repr(sys.flags),
        "executable": sys.executable, "prefix": sys.prefix, "meta_path": [repr(f).split(" at ")[0] for f in sys.meta_path],
        "path_hooks": len(sys.path_hooks), "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
        "main": {name: repr(getattr(main, name, "none")).split(" at 0x")[0]
                 for name in ("__name__", "__file__", "__package__", "__spec__", "__doc__", "__loader__", "__cached__")},
        "own modules": sorted(n for n in sys.modules if "zygote" in n or "customize" in n),
        "cmdline": proc("cmdline"), "comm": proc("comm"), "cwd": os.getcwd(), "umask": os.umask(0o22),
        "environment": {k: v for k, v in os.environ.items() if k not in OWN_NUMBERS},
        "order": [k for k in os.environ], "getenv": subprocess.run(
            ["sh", "-c", "echo $RANK $PYTHONPATH $LOCAL_RANK"], capture_output=True, text=True).stdout,
        "ids": [os.getpid() == os.getsid(0) == os.getpgrp(), os.getuid(), os.getgroups(), os.getpriority(os.PRIO_PROCESS, 0)],
        "parent": open(f"/proc/{os.getppid()}/comm").read(), "death signal": value.value,
        "status": status("SigBlk", "SigIgn", "SigCgt", "Cpus_allowed_list", "Mems_allowed_list", "Threads", "CapEff",
                         "NoNewPrivs", "Seccomp", "Umask"),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT")},
        "cgroup": re.sub("crun-[0-9a-f]{16}", "crun-NUMBER", proc("cgroup")), "oom": proc("oom_score_adj"), "descriptors": descriptors(),
        "threads": [threading.active_count(), threading.current_thread() is threading.main_thread(),
                    threading.current_thread().name],
        "signals": {s.name: repr(signal.getsignal(s)).split(" at ")[0] for s in signal.valid_signals()
                    if isinstance(s, signal.Signals)},
        "streams": [[s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through, s.name, s.mode, s.isatty()]
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "stdin": sys.stdin.read(), "faulthandler": faulthandler.is_enabled(), "stack": stack(),
        "depth": len(inspect.stack()), "beside": warm_beside.VALUE, "exec": subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True).stdout,
        "children": {m: in_child(m) for m in ("spawn", "fork", "forkserver")},
        "authkey": len(multiprocessing.current_process().authkey), "process": multiprocessing.current_process().name,
        "is first random": random.getstate()[1][-1],
    }


if __name__ == "__main__":
    secrets = [random.random(), multiprocessing.current_process().authkey.hex()]
    if "numpy" in sys.argv:
        import numpy
        secrets.append(numpy.random.rand())
    atexit.register(lambda: (sys.stdout.write("at exit\n"), sys.stdout.flush()))
    with open(f"{sys.argv[-1]}.{os.environ['RANK']}", "w") as file:
        json.dump([dump(), secrets], file)
    # One write for each line, also with PYTHONUNBUFFERED: the ranks share a pipe.
    sys.stdout.write(f"out {os.environ['RANK']}\n")
    sys.stderr.write(f"err {os.environ['RANK']}\n")
