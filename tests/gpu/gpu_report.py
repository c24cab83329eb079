"""The report of a call of tests/gpu/run, and how the programs of the call are run: bounded, and each with the sentence that explains
its failure."""

import collections
import ctypes.util
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

PACK = "packed.tar.xz"
SETTINGS = "settings.json"  # of prepare: what was computed before
LOG_BYTES = 1 << 20
LINES_MAX = 10000  # kept of the first and of the last ones each
END_S = 5  # between SIGTERM and SIGKILL, and behind it
MARGIN_S = 2 * END_S + 2
SKIPPED, OPTIONAL = 77, ("blas",)  # the exit code of a program that lacks something here; parts in which that is no failure
LEAST_S = 3  # a program that may run for less is not started

# The first line that matches explains a failure; the line is looked at without the prefix of a rank.
EXPLAINS = re.compile(r"^(train|train_check|device_check|(gpu_|emulated_)?kernel_\w+|torch_\w+): |\[  ERROR   \]|NCCL WARN|"
                      r"^========= (Invalid|Error|Race|Uninit|Barrier|Program hit|Internal)|"
                      r"^[\w.]*(Error|Exception|Interrupt)\b|\berror\b", re.IGNORECASE)
CMOCKA = "[  ERROR   ] --- "
LATE = re.compile(r"not done after \d+ s$")  # Running.wait() adds it
NOISE = re.compile(r"^\s|\b0 errors?\b|error_file|^crun: ")
TRACEBACK = re.compile(r"^\s*traceback : (?!To enable)(.*)")


def why_of(output):
    lines = [re.sub(r"^\[[\w ]+\d\]:? ", "", line) for line in output.splitlines() if line.strip()]
    explaining = [line for line in lines if EXPLAINS.search(line) and not NOISE.search(line)]
    traceback = [m.group(1) for m in map(TRACEBACK.match, lines) if m]
    failed = [line for line in lines if "FAILED" in line]
    why = (explaining or traceback or failed or lines[-1:] or ["it printed nothing"])[0].strip()
    if why.startswith(CMOCKA):  # the place is in the next line
        place = [re.sub(r".*--- ", "", line) for before, line in zip(lines, lines[1:]) if before.strip() == why and "[   LINE" in line][:1]
        why = " in ".join([why[len(CMOCKA):], *place])
    late = [line for line in lines[-2:] if LATE.match(line)]
    return (f"{late[0]}: {why}" if late and why != late[0] else why)[:300]


class Running:
    """A program in a session of its own; the time on the monotonic clock and the text of each line that it prints."""

    def __init__(self, args, environment):
        self.began = time.monotonic()
        self.first, self.last, self.added = [], collections.deque(maxlen=LINES_MAX), []
        self.process = self.reader = None
        try:
            self.process = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                            errors="replace", env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as e:
            self.added.append((self.began, f"error: cannot start {e.filename}: {e.strerror}\n"))
            return
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            (self.first if len(self.first) < LINES_MAX else self.last).append((time.monotonic(), line))

    def lines(self):
        return list(self.first) + list(self.last) + self.added

    def output(self):
        return "".join(line for _, line in self.lines())

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def wait(self, timeout):
        """Its exit code. 124: it was not done in time and was ended; 127: it could not be started."""
        if not self.process:
            return 127
        try:
            code = self.process.wait(max(timeout, 0))
        except subprocess.TimeoutExpired:
            code = 124
            self.end()
            self.added.append((time.monotonic(), f"not done after {timeout:.0f} s\n"))
        self.reader.join(END_S)  # a process that was left behind may hold the pipe
        return code

    def end(self):
        """crun ends its workers, which are in sessions of their own, when it gets SIGTERM, and its guardian does behind SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self.signal(number)
            try:
                self.process.wait(END_S)
                return
            except subprocess.TimeoutExpired:
                continue
        self.added.append((time.monotonic(), "error: SIGKILL does not end it\n"))

    def signal(self, number):
        if self.is_running():  # else its number may be another's
            try:
                os.killpg(self.process.pid, number)
            except OSError:
                pass


Outcome = collections.namedtuple("Outcome", "ok code output lines figures")
NOT_RUN = Outcome(None, 124, "", [], {})


def query(*args, timeout=8):
    """What a tool prints, or why it does not, in parentheses."""
    running = Running(args, dict(os.environ))
    code = running.wait(timeout)
    output = running.output().strip()
    return f"({output[-300:]})" if code in (124, 127) else output


def find_tool(name):
    """Also where CUDA's installer puts it, outside PATH."""
    places = [shutil.which(name)]
    for pattern in (f"usr/local/cuda*/bin/{name}", f"usr/local/cuda*/compute-sanitizer/{name}", f"opt/nvidia/nsight-compute/*/{name}",
                    f"usr/lib/nsight-compute/{name}"):
        places += sorted(map(str, pathlib.Path("/").glob(pattern)), reverse=True)
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def library_of_torch(name):
    """The library in PyTorch's wheels, where there is one."""
    code = f"import nvidia, pathlib; print(next(p for f in nvidia.__path__ for p in sorted(pathlib.Path(f).rglob('{name}'))))"
    path = query(sys.executable, "-c", code).splitlines()
    return path[-1] if path and path[-1].startswith("/") else None


def nccl_version(path):
    """As the library counts: 23203 is 2.32.3. In a process of its own, for libraries that do not load."""
    code = "import ctypes, sys; v = ctypes.c_int(); ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(v)); print(v.value)"
    output = query(sys.executable, "-c", code, path)
    return int(output) if output.isdigit() else why_of(output)


def torch_facts():
    code = ("import json, torch; c = torch.cuda.is_available(); print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, "
            "'torch_sees_gpu': c, 'torch_nccl': torch.cuda.nccl.version() if c else None}))")
    output = query(sys.executable, "-c", code, timeout=40)
    return json.loads(output.splitlines()[-1]) if output.endswith("}") else {"torch": None, "why_no_torch": why_of(output)}


class Report:
    """Results of a call, written after every line; logs and snapshots are in a folder of their own."""

    def __init__(self, name, folder, reports, call_s, asks_torch=False):
        self.asks_torch = asks_torch
        self.name, self.reports, self.part = name, reports, name
        self.results, self.parts, self.fallen, self.children, self.in_background = [], {}, [], [], {}
        self.began = time.monotonic()
        self.deadline = self.part_deadline = self.began + max(call_s - MARGIN_S, 1)
        self.stopped = ""  # why the call ended early
        self.lock = threading.RLock()
        self.machine = {"gpus": ["not asked yet"], "nccl": None, "nccl_version": None}
        late = threading.Timer(call_s, self.give_up)
        late.daemon = True
        late.start()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-run-"))
        self.folder = folder
        if (folder / PACK).exists():
            self.folder = self.work / "unpacked"
            with tarfile.open(folder / PACK) as tar:
                tar.extractall(self.folder)
            if ctypes.util.find_library("z"):  # else Python's own modules would load the one that was carried
                (self.folder / "libz.so.1").unlink(missing_ok=True)
        settings = self.folder / SETTINGS
        self.settings = json.loads(settings.read_text()) if settings.exists() else {}
        self.emulated = self.settings.get("emulated", False)
        self.environment = self.make_environment()
        self.facts = threading.Thread(target=self.ask_machine, daemon=True)
        self.facts.start()
        self.write()

    def make_environment(self):
        env = dict(os.environ)
        env["LD_LIBRARY_PATH"] = f"{self.folder}:{env.get('LD_LIBRARY_PATH', '')}".rstrip(":")
        env.setdefault("CRW_PLUGIN_DIR", str(self.folder))
        env.setdefault("OMP_NUM_THREADS", "1")
        env.setdefault("PYTHON_EXEC", sys.executable)
        env.setdefault("PYTHONDONTWRITEBYTECODE", "1")
        if self.emulated:
            env["CRW_NCCL_LIBRARY"] = str(self.folder / "libnccl.so.2")
            return env
        for variable, name in (("CRW_NCCL_LIBRARY", "libnccl.so.2"), ("CRW_CUBLASLT_LIBRARY", "libcublasLt.so.1[23]")):
            if found := library_of_torch(name):
                env.setdefault(variable, found)
        return env

    def ask_machine(self):
        """Fills self.machine; each question is bounded."""
        fields = ("name", "driver_version", "persistence_mode", "compute_mode", "mig.mode.current", "clocks.sm", "clocks.max.sm",
                  "clocks.mem", "power.limit", "memory.used")
        rows = query("nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader").splitlines()
        nccl = self.environment.get("CRW_NCCL_LIBRARY")
        found = {"gpus": [dict(zip(fields, row.split(", "))) for row in rows] or ["no GPU"], "nccl": nccl,
                 "cublaslt": self.environment.get("CRW_CUBLASLT_LIBRARY"), "cores": os.cpu_count(), "python": sys.version.split()[0],
                 "tools": {name: find_tool(name) for name in ("compute-sanitizer", "ncu", "nvidia-smi")},
                 "shared_memory_mib": shutil.disk_usage("/dev/shm").total >> 20,
                 "libraries": [line.strip() for line in query("ldconfig", "-p").splitlines() if re.search("cuda|nccl|cublas", line)]}
        self.machine.update(found)
        self.machine["topology"] = query("nvidia-smi", "topo", "-m").splitlines()
        self.machine["nccl_version"] = nccl_version(nccl or "libnccl.so.2")
        if self.asks_torch:
            self.machine.update(torch_facts())

    def give_up(self):
        """A process that not even SIGKILL ends, because it sits in the driver: the report is worth more than its end."""
        self.stopped = self.stopped or f"the call did not come to its end in time (in part {self.part})"
        try:
            for child in self.children:
                child.signal(signal.SIGKILL)
            self.add("the call", False, time.monotonic() - self.began, why=self.stopped)
            shutil.rmtree(self.work, ignore_errors=True)
        finally:  # also where the disk is full
            os._exit(1)

    def left(self):
        return min(self.deadline, self.part_deadline) - time.monotonic()

    # ---- lines

    def add(self, name, ok, seconds, **values):
        """ok None: skipped, and values has why."""
        with self.lock:
            name = name if self.part == self.name else f"{self.part}: {name}"
            self.results.append({"name": name, "ok": None if ok is None else bool(ok), "seconds": round(seconds, 2), **values})
            print({None: "skip  ", True: "ok    ", False: "FAILED"}[self.results[-1]["ok"]], name, values, flush=True)
            self.write()

    def skip(self, name, why):
        self.add(name, None, 0, why=why)

    def hold(self, name, sentences, seconds=0, **values):
        """What has to hold, by the sentence that explains why it does not."""
        broken = [sentence for sentence, holds in sentences.items() if not holds]
        self.add(name, not broken, seconds, **values, **({"why": "; ".join(broken)} if broken else {}))

    def log(self, name, output):
        (self.work / re.sub(r"[^A-Za-z0-9.-]", "_", f"{self.part}-{name}.log")).write_text(output[-LOG_BYTES:])

    def start(self, args, environment=None):
        child = Running(args, {**self.environment, **{k: str(v) for k, v in (environment or {}).items()}})
        if child.process:
            self.children.append(child)
        return child

    def run(self, name, args, timeout, values=None, environment=None):
        """Runs a program; what it prints goes to a log. values(output) adds figures, also of a program that fails, and may
        hold ok."""
        timeout = min(timeout, self.left())
        if timeout < LEAST_S:
            self.fall(self.part)
            self.skip(name, "no time was left for it")
            return NOT_RUN
        child = self.start(args, environment)
        code = child.wait(timeout)
        output = child.output()
        self.log(name, output)
        figures, ok = self.judge(code, output, values)
        ok = None if code == SKIPPED and self.part in OPTIONAL else ok
        self.add(name, ok, time.monotonic() - child.began, exit=code, **figures)
        return Outcome(ok, code, output, child.lines(), figures)

    @staticmethod
    def judge(code, output, values):
        """A file that a failed program has not written explains nothing."""
        figures, ok, missing = {}, code == 0, None
        if values:
            try:
                figures = dict(values(output))
                ok = figures.pop("ok", True) and ok
            except (IndexError, KeyError, ValueError, OSError, TypeError, AttributeError) as e:
                ok, missing = False, f"no figures: {e!r}"
        if not ok and "why" not in figures:
            signal_text = f"ended by signal {-code}: " if code < 0 else ""
            figures["why"] = signal_text + why_of(output) if code else missing or "the figures are not what they have to be"
        return figures, ok

    def together(self, specs):
        """Runs programs at once; specs are the arguments of run()."""
        with concurrent.futures.ThreadPoolExecutor(len(specs)) as pool:
            return list(pool.map(lambda spec: self.run(*spec), specs))

    # ---- in the background

    def begin_background(self, name, args, environment=None):
        self.in_background[name] = self.start(args, environment)

    def end_background(self, limit):
        """Waits for what was begun in the background; the seconds that each has taken and its exit code."""
        until = time.monotonic() + min(limit, self.left())
        for name, child in self.in_background.items():
            code = child.wait(max(until - time.monotonic(), 0.1))
            self.log(name, child.output())
            why = {} if code == 0 else {"why": why_of(child.output())}
            self.add(name, code == 0, time.monotonic() - child.began, exit=code, **why)
        self.in_background.clear()

    # ---- parts

    def fall(self, part):
        if part not in self.fallen:
            self.fallen.append(part)

    def run_part(self, name, function, need_s, limit_s):
        self.part, began = name, time.monotonic()
        self.part_deadline = self.deadline
        if self.left() < need_s:
            self.fall(name)
            self.skip("the part", f"{self.left():.0f} s were left, and it needs {need_s}")
            return
        self.part_deadline = began + limit_s
        try:
            function(self)
        except Exception as e:  # the report of what was done before is worth more
            self.add("the part itself", False, 0, why=repr(e))
        self.parts[name] = round(time.monotonic() - began, 1)

    # ---- files

    def headline(self):
        if self.stopped:
            return f"{self.name} FAILED: {self.stopped}"
        n = collections.Counter(r["ok"] for r in self.results)
        gpu = self.machine["gpus"][0]
        return f"{self.name} on {gpu.get('name') if isinstance(gpu, dict) else gpu}: {n[True]} ok, {n[False]} FAILED, {n[None]} skipped"

    def write(self):
        with self.lock:
            out = self.reports / self.name
            content = {"headline": self.headline(), "part": self.name, "machine": dict(self.machine), "emulated": self.emulated,
                       "date": datetime.datetime.now(datetime.timezone.utc).isoformat(), "fallen": self.fallen, "parts": self.parts,
                       "seconds": round(time.monotonic() - self.began, 1), "results": self.results}
            out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
            out.with_suffix(".md").write_text("\n".join(self.markdown()) + "\n")
            with tarfile.open(self.reports / f"{self.name}-logs.tar.gz", "w:gz") as tar:
                for log in sorted(self.work.glob("*.log")) + sorted(self.work.glob("*.jsonl")):
                    tar.add(log, log.name)

    def markdown(self):
        m = self.machine
        yield from (f"# {self.headline()}", "", f"{m['gpus'][0]}; NCCL {m['nccl_version']}; PyTorch {m.get('torch')}", "",
                    "| what | result | seconds | figures |", "| --- | --- | --- | --- |")
        for r in self.results:
            figures = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in r.items()
                                if k not in ("name", "ok", "seconds", "exit")).replace("|", "\\|")
            yield f"| {r['name']} | { {None: 'skipped', True: 'ok', False: 'FAILED'}[r['ok']]} | {r['seconds']} | {figures} |"
        yield from ("", "Seconds of the parts: " + ", ".join(f"{name} {s}" for name, s in self.parts.items()))

    def close(self):
        """False: something failed, or nothing was done."""
        left = [c for c in self.children if c.process.poll() is None]
        for number, seconds in ((signal.SIGTERM, 0 if self.stopped else END_S), (signal.SIGKILL, 2)):
            until = time.monotonic() + seconds
            for child in left:
                child.signal(number)
            while time.monotonic() < until and any(c.process.poll() is None for c in left):
                time.sleep(0.05)
        self.facts.join(2 if self.stopped else MARGIN_S)
        self.write()
        shutil.rmtree(self.work, ignore_errors=True)
        return bool(self.results) and all(r["ok"] is not False for r in self.results)
