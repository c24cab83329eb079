"""One command line under torchrun and under crun, each in the same folder, and what was seen of it.

A row (torchrun_runs.py) says what is run; "@PORT@" in it stands for a port that is free. The worker is tests/interop/scripts/probe.py or another script of that
folder; all of them are copied into the box, a folder that both launchers find in the same state under the same
name. What is seen: exit code, what each worker was started with, both streams, the failure table, the log tree,
what was left in TMPDIR, which processes were left.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import jobs
import launches
from nodes import free_port

SCRIPTS = jobs.ROOT / "tests" / "interop" / "scripts"
TORCHRUN_SCRIPT = pathlib.Path(sys.executable).parent / "torchrun"
TORCHRUN = [sys.executable, str(TORCHRUN_SCRIPT)] if TORCHRUN_SCRIPT.exists() else [
    sys.executable, "-c", "from torch.distributed.run import main; main()"]
TIME_LIMIT_S = 300


@dataclasses.dataclass
class Row:
    name: str
    words: list                # of the command line, behind the launcher
    env: dict = dataclasses.field(default_factory=dict)
    differs: tuple = ()        # titles of the differences (crun(1), COMPATIBILITY) this row shows
    signals: tuple = ()        # sent to the launcher when `ready` workers wait for a signal
    ready: int = 1
    input: str = ""
    says: str = ""             # both launchers have to say this on stderr
    parser_only: bool = False  # torchrun is asked up to its launch, in this process
    ci: bool = False           # among those that the ordinary test run compares
    files: tuple = ()          # (name, text): more files in the box; text None: a folder
    without: tuple = ()        # names taken out of the environment
    shuffles: bool = False     # the order of lines inside one stream is not compared
    nohup: bool = False        # SIGHUP is ignored at the start
    since: tuple = (2, 13)     # the first version of torchrun that reads the row as crun does


@dataclasses.dataclass
class Seen:
    code: int
    workers: dict  # "attempt.rank" -> what probe.py wrote down
    out: str
    err: str
    logs: dict     # path below the log folder -> text; folders end in "/"
    litter: list   # what is left in TMPDIR
    left: list     # names of processes that outlived the launcher
    port: str      # what stood for @PORT@


class Box:
    """The folder of one row: `here` is the working folder, `here/logs` the log folder."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.here, self.tmp, self.probes = self.root / "here", self.root / "tmp", self.root / "probes"

    def fill(self, row):
        for folder in (self.here, self.tmp, self.probes):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for script in SCRIPTS.iterdir():
            if script.is_file():
                shutil.copy(script, self.here)
        for name, text in row.files:
            path = self.here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                path.mkdir()
            else:
                path.write_text(text)
                path.chmod(0o755 if text.startswith("#!") else 0o644)

    def environment(self, row):
        python = os.path.dirname(sys.executable)
        env = {"PATH": f"{python}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.here),
               "LANG": "C.UTF-8", "TMPDIR": str(self.tmp), "PROBE_DIR": str(self.probes), "OMP_NUM_THREADS": "1",
               "PYTHONDONTWRITEBYTECODE": "1", **row.env}
        for name in ("CRUN_WARM", "XDG_CACHE_HOME"):  # tests/soak warm-interop
            if name in os.environ:
                env[name] = os.environ[name]
        return {name: value for name, value in env.items() if name not in row.without}

    def workers(self):
        return {path.name[:-5]: json.loads(path.read_text()) for path in sorted(self.probes.glob("*.json"))}

    def logs(self):
        """The tree below here/logs, without the first folder's random end."""
        tree = {}
        for path in sorted((self.here / "logs").rglob("*")):
            name = re.sub(r"_[A-Za-z0-9_]{8}(?=/attempt_|$)|_[A-Za-z0-9]{6}(?=/attempt_|$)", "_RANDOM",
                          str(path.relative_to(self.here / "logs")), count=1)
            tree[name + "/" * path.is_dir()] = "" if path.is_dir() else path.read_bytes().decode(errors="replace")
        return tree


def send_signals(process, box, row):
    """The first when the workers are ready for it, each other when the launcher still lives 5 s later."""
    def is_ready():
        return process.poll() is not None or len(list(box.probes.glob("ready.*"))) >= row.ready
    if not row.signals:
        return
    jobs.wait_for(is_ready, timeout=TIME_LIMIT_S)
    for name in row.signals:
        if process.poll() is None:
            process.send_signal(getattr(signal, name))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def with_port(row, port):
    return dataclasses.replace(row, words=[word.replace("@PORT@", port) for word in row.words],
                               env={name: value.replace("@PORT@", port) for name, value in row.env.items()})


def start_signals(row):
    signal.signal(signal.SIGHUP, signal.SIG_IGN if row.nohup else signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGQUIT):  # ignored where a shell started the test in the background
        signal.signal(number, signal.SIG_DFL)


def run(launcher, row, box):
    port = str(free_port())
    row = with_port(row, port)
    box.fill(row)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
        given.write(row.input.encode())
        given.seek(0)
        environment = {**box.environment(row), launches.TAG: str(box.root)}
        process = subprocess.Popen([*launcher, *row.words], cwd=box.here, env=environment, stdin=given, stdout=out,
                                   stderr=err, start_new_session=True, preexec_fn=lambda: start_signals(row))
        try:
            send_signals(process, box, row)
            code = process.wait(timeout=TIME_LIMIT_S)
        except (subprocess.TimeoutExpired, AssertionError):
            code = None
        left = list(launches.wait_until_gone(str(box.root), 1 if "Nothing is left" in row.differs else 20).values())
        for pid in launches.living(str(box.root)):
            jobs.kill(pid, signal.SIGKILL)
        process.wait()
        out.seek(0), err.seek(0)
        return Seen(code, box.workers(), out.read().decode(errors="replace"), err.read().decode(errors="replace"),
                    box.logs(), sorted(os.listdir(box.tmp)), left, port)


def run_torchrun(row, box):
    return run(TORCHRUN, row, box)


def run_crun(row, box):
    return run([jobs.crun()], row, box)
