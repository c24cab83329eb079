"""Jobs in which one rank stalls in a known way and phase, and what crun prints about them: a case is made from a seed, run, and judged."""

import contextlib
import dataclasses
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

import frozen
import hangs
import jobs
import nodes as lib

WORKERS = {"c": [jobs.build_folder() / "tests/workers/stall_job"], "torch": [sys.executable, jobs.ROOT / "tests/workers/stall_torch.py"]}
PHASES = ("meeting", "start", "init", "load", "steps", "save", "leave", "exit")
WRONG_CALLS = ("skip", "order", "size")

# Kind -> phases where it exists, by program. "starve-idle" is a data loader whose process sleeps.
KINDS = {
    "skip": {"c": ("steps",), "torch": ("steps",)},
    "order": {"c": ("steps",), "torch": ("steps",)},
    "size": {"c": ("steps",), "torch": ("steps",)},
    "read": {"c": ("start", "init", "load", "steps", "save"), "torch": ("start", "init", "load", "steps", "save")},
    "fifo": {"c": ("start", "init", "load", "steps", "save", "leave", "exit"), "torch": ("start", "init", "load", "steps", "save", "leave", "exit")},
    "sleep": {"c": PHASES, "torch": PHASES[1:]},
    "compute": {"c": PHASES[1:], "torch": PHASES[1:]},
    "stop": {"c": PHASES, "torch": PHASES[1:]},
    "disk": {"c": ("start", "init", "load", "steps", "save", "leave", "exit"), "torch": ("start", "init", "load", "steps", "save", "leave")},
    "import": {"c": ("start", "init", "load", "steps"), "torch": ("start", "init", "load", "steps")},
    "key": {"c": ("init", "load", "steps", "save", "leave"), "torch": ("init", "load", "steps", "save", "leave")},
    "port": {"c": ("meeting", "start", "init"), "torch": ("init",)},
    "starve": {"c": ("load", "steps", "leave"), "torch": ("load", "steps")},
    "pipe": {"c": ("init", "load", "steps", "save"), "torch": ("load", "steps", "save")},
}

# How the activity is named; FOLDER is the folder of the case.
ACTIVITIES = {
    "sleep": r"sleeps",
    "compute": r"computes",
    "read": r"reads FOLDER/data at (0\.[5-9]|1\.[0-4]) MB/s",
    "fifo": r"waits for input of FOLDER/fifo",
    "pipe": r"cannot write to .*pipe.*full",
    "starve": r"waits for its process \d+|.*(DataLoader|data loader)",
    "starve-idle": r"waits for its process \d+|waits for input of|.*(DataLoader|data loader)",
    "disk": r"is blocked in the kernel \(state D\)",
    "blocked": r"is blocked in the kernel \(state D\)",
    "import": r"reads FOLDER/slow/|imports |.*slow_module",
    "key": r".*\bkey\b",
    "stop": r"is stopped by a signal",
    "port-all": r"", "port": r"sleeps|.*connect|.*init_process_group",
    "skip": r"", "order": r"", "size": r"",
}

EARLY_S, LATE_S = 30, 10  # bounds of the latency, before the second step and from then on
WAIT_S = {"early": 60, "late": 40}
START_S = 180
MEETING = re.compile(r"crun: (?:\S+ \S+ )?2/3 nodes of job .*")
ADDRESS = re.compile(r"crun: .*no worker has opened the worker store at .*")


@dataclasses.dataclass
class Case:
    number: int
    program: str
    kind: str
    act: str  # "starve-idle" of the kind "starve", "blocked" of "disk", "port-all" of "port"
    phase: str
    n_nodes: int
    ranks: int  # of a node
    culprit: int
    step: int
    step_ms: int
    mover: int  # -1: none
    move: str

    @property
    def world(self):
        return self.n_nodes * self.ranks

    @property
    def is_early(self):
        """Whether the stall is before the second step, or the others have ended: waits by guess (stall.h)."""
        if self.phase == "exit" or (self.phase == "leave" and self.program == "torch"):
            return True
        return self.phase in ("meeting", "start", "init", "load") or (self.phase == "steps" and self.step < 2)

    @property
    def has_debug_server(self):
        """Whether PyTorch's debug server runs beside: one host, and past init_process_group()."""
        return self.program == "torch" and self.n_nodes == 1 and self.phase in ("load", "steps", "save")

    def __str__(self):
        moves = f", rank {self.mover} {self.move}" if self.mover >= 0 else ""
        return (f"#{self.number} {self.program} {self.act} in {self.phase}, {self.n_nodes} x {self.ranks} ranks, rank {self.culprit}, "
                f"step {self.step} of {self.step_ms} ms{moves}")


def draw(number, seed, program, kind, can_freeze=True):
    """The case of that number: the same for the same seed."""
    chance = random.Random(f"{seed} {program} {number} {kind}")
    phases = KINDS[kind][program]
    phase = "steps" if "steps" in phases and chance.random() < 0.4 else chance.choice(phases)
    n_nodes = 3 if phase == "meeting" else chance.choice((1, 1, 3) if program == "c" else (1, 1, 1, 3))
    if program == "torch":
        ranks = 1 if n_nodes == 3 else chance.choice((3, 4) if kind in WRONG_CALLS else (2, 3, 4))
    else:
        ranks = chance.randint(4, 16) if n_nodes == 1 else chance.randint(2, 5)
    culprit = chance.randrange(n_nodes * ranks)
    step = chance.choice((0, 1, 2, 3, 7, chance.randint(100, 130), chance.randint(100, 130)))
    step_ms = chance.randint(15, 40)
    if program == "torch":
        step_ms = chance.randint(100, 160) if step >= 100 else chance.randint(500, 3000)
    others = [rank for rank in range(n_nodes * ranks) if rank != culprit]
    mover = chance.choice(others) if len(others) > 1 and chance.random() < 0.5 else -1
    act = "port-all" if program == "torch" and kind == "port" and chance.random() < 0.5 else "starve-idle" if kind == "starve" and chance.random() < 0.4 else "blocked" if kind == "disk" and not can_freeze else kind
    return Case(number, program, kind, act, phase, n_nodes, ranks, culprit, step, step_ms, mover,
                chance.choice(("prints", "writes")))


# ---- the job of a case


class Job:
    def __init__(self, case, folder):
        self.case, self.folder, self.nodes = case, folder, []
        self.stack = contextlib.ExitStack()
        self.disk = None
        self.port = lib.free_port()
        self.debug_port = lib.free_port() if case.has_debug_server else None

    def __enter__(self):
        try:
            self._prepare()
            for i in range(self.case.n_nodes):
                self._start_node(i)
        except BaseException:
            self.finish()
            raise
        return self

    def __exit__(self, *_):
        self.finish()

    def _prepare(self):
        (self.folder / "data").write_bytes(bytes(2 << 20))
        for name in ("fifo", "other_fifo"):
            os.mkfifo(self.folder / name)
        if self.case.act == "disk":
            self.disk = frozen.FrozenDisk(self.folder / "disk")
        if self.case.act == "import":
            self.slow = self.stack.enter_context(contextlib.ExitStack())
            self.slow.enter_context(hangs.silent_disk(self.folder / "slow"))

    def _meet(self, node):
        if self.case.n_nodes == 1:
            return ["--standalone"]
        is_lost = self.case.phase == "meeting" and self.case.kind == "port" and node == self._culprit_node()
        return [f"--nnodes={self.case.n_nodes}", "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{lib.free_port() if is_lost else self.port}", "--rdzv-id=stall", "--security=open"]

    def _culprit_node(self):
        """Not the node that serves the rendezvous, the first that is started."""
        return 1 + self.case.culprit % (self.case.n_nodes - 1)

    def _start_node(self, i):
        c = self.case
        is_culprit = c.phase == "meeting" and i == self._culprit_node()
        if is_culprit and c.kind == "sleep":
            return  # comes too late
        phase = "steps" if c.phase == "meeting" else c.phase
        worker = [*WORKERS[c.program], c.act, str(c.culprit), str(c.step), str(c.step_ms), self.folder, phase]
        worker += [str(c.mover), c.move] if c.mover >= 0 else []
        debug = {"STALL_DEBUG_PORT": str(self.debug_port)} if self.debug_port else {}
        with open(self.folder / f"node{i}", "wb") as output:
            p = subprocess.Popen([jobs.crun(), *self._meet(i), f"--nproc-per-node={c.ranks}", "--shutdown-timeout=3", "--hang-timeout=300",
                                  f"--event-log={self.folder / f'events{i}'}", f"--log-dir={self.folder / 'logs'}", "--no-python", *worker],
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **lib.QUIET, **debug})
        self.nodes.append(p)
        if is_culprit and c.kind == "stop":
            p.send_signal(signal.SIGSTOP)

    def text(self, node=0):
        return (self.folder / f"node{node}").read_text(errors="replace")

    def lines(self):
        """What crun printed on node 0."""
        return "\n".join(line for line in self.text().splitlines() if line.startswith("crun: "))

    def events(self, name, node=0):
        return [e for e in hangs.read_events(self.folder / f"events{node}") if e["event"] == name]

    def stamp(self, name):
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") else None

    def began_ns(self):
        """Since when the others have waited for the rank; None: they do not yet."""
        began = [ns for rank in range(self.case.world) if (ns := self.stamp(f"began.{rank}"))]
        stalled = self.stamp("stalled")
        return max(min(began), stalled) if began and stalled else None

    def pids(self):
        return [pid for e in sum((self.events("ready", i) for i in range(self.case.n_nodes)), []) for pid in e["pids"]]

    def states(self):
        """Of the job's processes, for a case without a line."""
        found = []
        for pid in [*(p.pid for p in self.nodes), *self.pids()]:
            with contextlib.suppress(OSError):
                read = [pathlib.Path(f"/proc/{pid}/{name}").read_text().strip() for name in ("wchan", "syscall", "schedstat")]
                found.append(f"\n{pid} {jobs.name(pid)}: {' | '.join(read)}")
        return "".join(found)

    def touched(self):
        """Processes of the job that are traced, or stopped and not the rank that stops itself."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
                if "TracerPid:\t0\n" not in status:
                    found.append(f"pid {pid} is traced")
                if re.search(r"State:\t[Tt]", status) and self.case.kind != "stop":
                    found.append(f"pid {pid} is stopped")
        return found

    def ask_debug_server(self):
        """What PyTorch's debug server has of the case: the ranks whose stacks it shows, whether that of the awaited rank is among them, and
        the seconds; None: no answer. (It names no rank that the others wait for.)"""
        began = time.monotonic()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.debug_port}/stacks", timeout=20) as answer:
                page = answer.read().decode(errors="replace")
        except OSError:
            return None
        parts = re.split(r"<h2>[^<]*?(\d+)[^<]*</h2>", page)
        ranks = [int(rank) for rank, text in zip(parts[1::2], parts[2::2]) if "stall_torch.py" in text]
        return {"ranks": ranks, "has_awaited": self.case.culprit in ranks, "s": round(time.monotonic() - began, 1)}

    def killed(self):
        """Workers that ended by a signal or with a failure."""
        return [f"rank {e['rank']} ended: {e.get('signal', e.get('exit_code'))}" for i in range(self.case.n_nodes)
                for e in self.events("exit", i) if e.get("signal") or e.get("exit_code")]

    def resume(self):
        """True when the rank goes on."""
        if self.case.kind in (*WRONG_CALLS, "key") or (self.case.kind, self.case.program) == ("port", "torch") or self.case.phase == "meeting":
            return False
        (self.folder / "go").touch()
        if self.disk:
            self.disk.thaw()
        if self.case.act == "import":
            self.slow.close()
        if self.case.kind == "stop":
            for pid in self.pids():
                jobs.kill(pid, signal.SIGCONT)
        if self.case.kind == "fifo":
            with open(os.open(self.folder / "fifo", os.O_RDWR | os.O_NONBLOCK), "wb", buffering=0) as fifo:
                fifo.write(b"x")
                jobs.wait_until(lambda: (self.folder / "steps.0").exists() or not self.is_running(), 3, 0.1)
        return True

    def is_running(self):
        return any(p.poll() is None for p in self.nodes)

    def ratios(self):
        """Time and processor time of the steps behind the stall, against those before it; None: not measured."""
        texts = [path.read_text() for path in self.folder.glob("steps.*")]
        rows = [list(map(int, text.split())) for text in texts if len(text.split()) == 4]
        if len(rows) < self.case.world:
            return None
        wall0, cpu0, wall1, cpu1 = (sum(column) for column in zip(*rows))
        return round(wall1 / wall0, 3), round(cpu1 / cpu0, 3)

    def finish(self):
        with contextlib.suppress(OSError):
            (self.folder / "go").touch()
        if self.disk:
            self.disk.thaw()
        for p in self.nodes:
            p.send_signal(signal.SIGCONT)
        self.stack.close()
        for p in self.nodes:
            hangs.end(p)


# ---- the judgement


def _awaited(headline):
    found = re.search(r" for rank (\d+) on \S+(?: \(pid \d+\))?: (.*)", headline)
    return (int(found[1]), found[2]) if found else (None, "")


def judge_line(case, folder, event):
    """"right", or how the line is wrong."""
    headline = event["groups"][0]
    rank, activity = _awaited(headline)
    if event.get("rank", rank) != case.culprit:
        return f"rank {event.get('rank', rank)} is blamed"
    pattern = ACTIVITIES[case.act].replace("FOLDER", re.escape(str(folder)))
    return "right" if re.match(pattern, activity) else "another activity"


def _find_hint(job):
    """A line that stands in for one about a rank: where the nodes meet, and where no rank opens the store."""
    if job.case.act == "port-all":
        return (found := ADDRESS.search(job.text())) and found[0]
    return job.case.phase == "meeting" and next((m[0] for path in job.folder.glob("node?") if (m := MEETING.search(path.read_text(errors="replace")))), None)


def new_result(case, verdict="missed", line=""):
    """For a line of JSON."""
    return {"number": case.number, "program": case.program, "kind": case.kind, "phase": case.phase, "case": str(case), "early": case.is_early,
            "verdict": verdict, "latency_s": None, "line": line, "killed": [], "touched": [], "ratios": None, "goes_on": None,
            "debug_server": None}


def run_case(case, folder):
    """The result of the case."""
    result = new_result(case)
    started = time.monotonic()
    with Job(case, folder) as job:
        if case.phase == "meeting":
            found = jobs.wait_until(lambda: _find_hint(job), EARLY_S, 0.1)
            if found:
                result.update(verdict="right", line=found, latency_s=round(time.monotonic() - started, 1))
            return result
        began_ns = jobs.wait_until(lambda: job.began_ns() or (not job.is_running() and -1), START_S, 0.05)
        if not began_ns or began_ns < 0:
            return {**result, "verdict": "did not begin", "line": job.text()[-1500:]}
        wait_s = WAIT_S["early" if case.is_early else "late"]
        jobs.wait_until(lambda: job.events("stall") or _find_hint(job) or not job.is_running(), wait_s, 0.1)
        found, now_ns, seen = _find_hint(job), time.monotonic_ns(), job.events("stall")
        result["killed"] = job.killed()
        if found and not seen:
            return {**result, "verdict": "right", "latency_s": round((now_ns - began_ns) / 1e9, 1), "line": found}
        if not seen:
            return {**result, "line": job.lines()[-1500:] + job.states()}
        result.update(verdict=judge_line(case, folder, seen[0]), latency_s=round((seen[0]["monotonic_ns"] - began_ns) / 1e9, 1),
                      line="\n".join(seen[0]["groups"]))
        if seen[0]["monotonic_ns"] < began_ns:
            result["verdict"] = "a line before the stall"
        time.sleep(0.3)
        result["touched"] = job.touched()
        if case.has_debug_server:
            result["debug_server"] = job.ask_debug_server()
        if job.resume():
            _follow(job, result)
    return result


def _follow(job, result):
    measures = job.case.phase == "steps" and job.case.step >= 100
    jobs.wait_until(lambda: not job.is_running() or (measures and job.ratios()) or "stall: the ranks go on" in job.text(), 30, 0.2)
    result["ratios"] = job.ratios() if measures else None
    result["goes_on"] = bool(jobs.wait_until(lambda: "stall: the ranks go on" in job.text() or not job.is_running(), 5, 0.2)) and \
        "stall: the ranks go on" in job.text()
    result["killed"] += job.killed()


def share(values, part):
    """The value below which that part of them lies; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None


def median(values):
    return statistics.median(values) if values else None
