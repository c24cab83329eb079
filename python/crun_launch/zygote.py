"""The zygote of `crun --warm`: one interpreter per node that has imported what the job imports, and forks the workers.

crun executes the interpreter with the command line of a worker and this file as `sitecustomize` (a zip file in memory,
first in PYTHONPATH). CPython imports sitecustomize before it looks at the script: the process stays in main() below,
imports modules and waits for orders. Each worker is a fork of it that returns from main(): CPython itself then runs the
script, the module or the code of the command line. So `__main__`, sys.path[0], tracebacks, exit codes and atexit are the
interpreter's own, and no frame of this file is below the script.

    guardian -- START (bytes, descriptors) --> zygote          launcher/supervise/zygote_os.h and worker_start.h have the formats
                                               zygote forks a helper, the helper forks the workers and ends:
                                               the guardian, a subreaper, adopts them
    guardian <- its process id --------------- worker, in a socket of its own for each start
    guardian -- one byte --------------------> worker, which returns to CPython

A worker that does not receive the byte ends: the guardian starts it by exec then, and no worker runs twice. Starts wait for the
imports of the list that the job began with, and for no others: while LOADING reports have the value 1, the guardian starts by exec.

Which modules: names that an earlier run of the script, or an earlier generation of this job, has imported. The first
worker notes them in memory that it shares with the zygote; the zygote keeps them in a file below XDG_CACHE_HOME, names
only. Modules of the script's folder, of PYTHONPATH and of anything but the interpreter's library and site-packages are
never imported here: they may change between two generations. Nor is a module of the library that a module there hides, or one
that imports such a module; the file has these with the name that hides them, and they count again when that name is gone.

What must not be shared by fork ends the use of the module that makes it: a thread, an open descriptor (a GPU's driver opens its device),
a failed import, a look at a variable that differs between workers. The module and all that import it are dropped, the name
is reported once and kept in the file, and the zygote executes itself again without them. The first worker notes looks at such
variables while it makes the list; an import that fails is tried once more, first of all in a new process. So is a module whose import ends the process or
does not end itself: its name stands in a memory file of the guardian, which launches the next zygote. What cannot be forked at all is
reported (REFUSED), and the workers start by exec.

What modules print while they are imported here goes to memory, and each worker prints it at its start.
"""

import _frozen_importlib as importlib_core
import _frozen_importlib_external as importlib_files
import os
import sys

START, END = 1, 2  # orders
READY, DROPPED, REFUSED, LOADING, REMARK = 1, 2, 3, 4, 7  # reports
TEXT_SIZE = 200
ORDER_SIZE = 16
HEAD_SIZE = 16
N_FDS_MAX = 10
N_ORDERS_MAX = 16  # forked at once: with their descriptors they fit into a small limit of open files
N_NAMES_MAX = 20000
CACHE_SIZE_MAX = 4 << 20
NOTES_SIZE = 1 << 20
PASSES_MAX = 10
THREAD_END_S = 0.5  # for a thread that ends by itself after an import
LEARN_FIRST_MS = 100  # behind the starts of a generation, what the one before has imported
LEARN_INTERVAL_MS = 1000
LEARN_SLOW_MS = 10000
LEARN_QUICK_ROUNDS = 60

# Numbers of descriptors: in the zygote when it is executed, and in workers (launcher/supervise/worker_start.h).
CONTROL_FD, SOURCE_FD, IMPORT_FD = 3, 4, 5
WORKER_FD = 3  # notice, state, cache, key
LAST_FD = 7
FREE_FD = 64

# Variables that differ between the workers of a node or between two generations.
OF_ONE_WORKER = set("""
LOCAL_RANK RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR
MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE
TORCHELASTIC_ERROR_FILE CRUN_NOTICE_FD CRUN_GENERATION CRUN_STATE_FD CRUN_CACHE_FD CRUN_LOCAL_ADDR
CRUN_MASTER_HOST CRUN_KEY_FD CRUN_SEAL
""".split())

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP, PR_SET_PTRACER = 1, 15, 35, 14, 0x59616d61
MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20
SIGKILL = 9


class Refused(Exception):
    """Nothing can be forked from this process; the text is the reason."""


class Dropped(BaseException):
    """Ends an import that needs a dropped module. No Exception: packages try imports and go on without."""


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def message_of(error):
    text = str(error).split("\n")[0].encode("ascii", "backslashreplace").decode().replace("\0", "?")
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


# ---- the environment that the interpreter was executed with ----

class Origin:
    """What the zygote itself was started with, so that it can execute itself again and workers get what is theirs."""

    def __init__(self):
        self.environment = dict(os.environb)
        self.argv = read_bytes("/proc/self/cmdline").split(b"\0")[:-1]
        self.comm = read_bytes("/proc/self/comm").strip(b"\n")
        self.cwd = os.getcwd()
        self.umask = os.umask(0)
        os.umask(self.umask)
        # What was found in earlier passes: "-NAME" dropped, "?NAME SHADOW" hidden, "!NAME" to be tried again.
        self.found = [n for n in os.environ.pop("CRUN_ZYGOTE_FOUND", "").split("\n") if n]
        self.n_passes = len(self.environment.get(b"CRUN_ZYGOTE_PASS", b""))
        os.environ.pop("CRUN_ZYGOTE_PASS", None)
        OF_ONE_WORKER.update(os.environ.pop("CRUN_ZYGOTE_VARIES", "").split())
        for name in OF_ONE_WORKER:
            os.environ.pop(name, None)
        own, colon, rest = os.environ["PYTHONPATH"].partition(os.pathsep)
        self.own_path = own
        if colon:
            os.environ["PYTHONPATH"] = rest
        else:
            del os.environ["PYTHONPATH"]
        self.user_path = [p for p in rest.split(os.pathsep)] if colon else []

    def execute_again(self, found):
        environment = dict(self.environment)
        # The kernel takes 128 KiB; the file has the rest.
        environment[b"CRUN_ZYGOTE_FOUND"] = "".join(line + "\n" for line in found)[:100000].rpartition("\n")[0].encode()
        environment[b"CRUN_ZYGOTE_PASS"] = b"x" * (self.n_passes + 1)
        os.execve(sys.executable, self.argv, environment)


def words_of_script(argv):
    """How many words of a worker's command line come before the arguments of the program: python -u [-m|-c] NAME."""
    if len(argv) >= 3 and argv[1] == b"-u":
        if argv[2] in (b"-m", b"-c"):
            return 4 if len(argv) >= 4 else 0
        if not argv[2].startswith(b"-"):
            return 3
    return 0


# ---- where modules may come from ----

class Places:
    """Folders: of the script, of PYTHONPATH (both come before the library), and those that modules are taken from."""

    def __init__(self, origin):
        import site
        argv = origin.argv
        self.module = os.fsdecode(argv[3]) if argv[2] == b"-m" else None
        script = os.fsdecode(argv[2])
        if argv[2] in (b"-m", b"-c"):
            self.script = origin.cwd
        elif os.path.isdir(script):
            self.script = os.path.realpath(script)
        else:
            self.script = os.path.dirname(os.path.realpath(script))
        self.first = [self.script] + [os.path.abspath(p) for p in origin.user_path]
        self.site = [os.path.realpath(p) for p in site.getsitepackages() if os.path.isdir(p)]
        if site.ENABLE_USER_SITE and os.path.isdir(site.getusersitepackages()):
            self.site.append(os.path.realpath(site.getusersitepackages()))
        # A .pth file may name the site-packages of another environment.
        self.site += [folder for folder in map(os.path.realpath, sys.path) if os.path.isdir(folder) and folder not in self.site
                      and os.path.basename(folder) in ("site-packages", "dist-packages") and folder not in self.first]
        self.library = self.site + [os.path.dirname(os.path.realpath(os.__file__))]
        self.shadows = {}

    def look(self):
        """Top-level modules that the script's folder or PYTHONPATH has before the library, {name: path}. A folder without __init__ hides
        nothing: Python takes a regular package that comes later."""
        import _imp
        suffixes, self.shadows = (".py", ".pyc", *_imp.extension_suffixes()), {}
        for folder in self.first:
            try:
                entries = os.listdir(folder)
            except OSError:
                entries = []  # it has none; or PYTHONPATH names a zip file
            if os.path.isfile(folder):
                raise Refused("PYTHONPATH names the file %s" % folder)
            for entry in entries:
                name, path = entry.partition(".")[0], os.path.join(folder, entry)
                if entry[len(name):] in suffixes or entry == name and any(os.path.exists(path + "/__init__" + s) for s in suffixes):
                    self.shadows.setdefault(name, path)

    def is_shadowed(self, name):
        return name.partition(".")[0] in self.shadows

    def has(self, file):
        """Whether a module of this file may be imported by the zygote."""
        file = os.path.realpath(file)
        library, first = (max((len(f) for f in folders if file.startswith(f + os.sep)), default=0)
                          for folders in (self.library, self.first))
        return library > 0 and library >= first


# ---- the names ----

def is_name(text):
    return len(text) < 256 and all(part.isidentifier() for part in text.split("."))


class Names:
    """The list of modules, in the order in which their imports ended, and those that were dropped, with the reason."""

    def __init__(self, places, origin):
        self.wanted, self.dropped = {}, {}
        self.hidden = {}  # modules that need one that is hidden: the name of that
        self.suspects = {}  # their import has failed, perhaps because of another module
        self.unreported = {}  # dropped, and the user has not been told
        self.places, self.path = places, self.cache_path(places, origin)
        self.read()
        self.take(origin.found)

    @staticmethod
    def cache_path(places, origin):
        import _sha1
        folder = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(folder):
            folder = os.path.join(os.path.expanduser("~"), ".cache")
        if not os.path.isabs(folder):
            return None  # no home
        key = [os.path.realpath(sys.executable), sys.prefix, sys.version, places.script]
        key += [os.fsdecode(word) for word in origin.argv[2:words_of_script(origin.argv)]]
        key += ["%s %d" % (folder, os.stat(folder).st_mtime_ns) for folder in places.site]
        digest = _sha1.sha1("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(folder, "crun", "warm-%s" % digest[:24])

    def read(self):
        try:
            with open(self.path or "", "rb") as file:
                info = os.fstat(file.fileno())
                text = file.read(CACHE_SIZE_MAX).decode("ascii") if info.st_uid == os.geteuid() else ""
        except (OSError, UnicodeDecodeError):
            return
        self.take(text.split("\n")[:2 * N_NAMES_MAX])

    def drop(self, name, reason):
        """The reason of modules that only import a dropped one is empty: the user reads one name."""
        if name not in self.dropped:
            self.dropped[name] = reason
            self.wanted.pop(name, None)
            if reason:
                self.unreported[name] = reason

    def take(self, lines):
        for line in lines:
            name, _, reason = line[1:].partition(" ")
            if not is_name(name):
                continue
            if line[:1] == "-":
                self.dropped.setdefault(name, reason)
            elif line[:1] == "*":
                self.dropped[name] = self.unreported[name] = reason
            elif line[:1] == "?" and reason in self.places.shadows:
                self.hidden[name] = reason
            elif line[:1] == "!":
                self.suspects[name] = None
            elif line[:1] in ("+", "?"):
                self.wanted[name] = None
        for name in {**self.dropped, **self.hidden}:
            self.wanted.pop(name, None)

    def found(self):
        lines = ["%s%s %s" % ("*" if name in self.unreported else "-", name, reason) for name, reason in self.dropped.items()]
        return lines + ["?%s %s" % item for item in self.hidden.items()] + ["!" + name for name in self.suspects]

    def write(self):
        if not self.path:
            return
        lines = ["+" + name for name in self.wanted] + self.found()
        temporary = "%s.%d" % (self.path, os.getpid())
        try:
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(("\n".join(lines) + "\n").encode("ascii", "replace"))
            os.replace(temporary, self.path)
        except OSError:
            pass  # the next run learns again

    def add(self, names):
        """Returns whether any was new."""
        n = len(self.wanted)
        for name in names:
            if name not in self.dropped and name not in self.hidden and len(self.wanted) < N_NAMES_MAX:
                self.wanted.setdefault(name)
        return len(self.wanted) > n


class Notes:
    """What the first worker imports, in memory that the zygote and its forks share. Lines: NAME; "-NAME REASON", to be dropped; "@N FOLDER",
    so many modules of a folder that nothing is imported from beforehand."""

    def __init__(self):
        import mmap
        self.memory = mmap.mmap(-1, NOTES_SIZE)
        self.pending, self.reads, self.foreign = [], set(), {}

    def size(self):
        return int.from_bytes(self.memory[:4], "little")

    def lines(self):
        return bytes(self.memory[4:4 + min(self.size(), NOTES_SIZE - 4)]).decode("ascii", "replace").split("\n")

    def append(self, text):
        line = text.encode("ascii", "backslashreplace") + b"\n"
        size = self.size()
        if 4 + size + len(line) <= NOTES_SIZE:
            self.memory[4 + size:4 + size + len(line)] = line
            self.memory[:4] = (size + len(line)).to_bytes(4, "little")

    def add_foreign(self, file):
        """Counts it for its folder of sys.path, and notes every 64th."""
        folder = max((p for p in sys.path if p and file.startswith(p + os.sep)), key=len, default=os.path.dirname(file))
        n = self.foreign[folder] = self.foreign.get(folder, 0) + 1
        if n % 64 == 0:
            self.append("@%d %s" % (n, folder))

    def add_read(self, variable, frame):
        """The module whose import looks at the variable is to be dropped, and so are those that import it."""
        importing = []
        while frame is not None:
            names = frame.f_globals
            if frame.f_code.co_name == "<module>" and getattr(names.get("__spec__"), "_initializing", False):
                importing.append(names["__spec__"])
            frame = frame.f_back
        reason = "reads %s when it is imported" % variable
        for spec in importing if importing and importing[0].has_location and self.places.has(importing[0].origin) else ():
            if spec.name not in self.reads:
                self.reads.add(spec.name)
                self.append("-%s %s" % (spec.name, reason))
            reason = ""

    def settle(self):
        """Writes down the pending imports that have ended well, inner ones first, and forgets those that have failed."""
        pending = []
        for name in reversed(self.pending):
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if spec is not None and getattr(spec, "_initializing", False):
                pending.append(name)
            elif spec is not None:
                self.append(name)
        self.pending = pending[::-1]

    def watch(self, places):
        """In the first worker: notes each module that the import system finds in the library."""
        import atexit
        self.places = places
        original = importlib_files.PathFinder.find_spec
        atexit.register(self.settle)  # for the last import of all; the first to be registered is the last to run
        get_frame = sys._getframe

        def find_spec(cls, fullname, path=None, target=None):
            spec = original(fullname, path, target)
            # Not for a mere look (importlib.util.find_spec), which imports nothing.
            if spec is not None and get_frame(2).f_code.co_name == "_find_and_load_unlocked":
                self.settle()
                if spec.origin and spec.has_location:
                    if places.has(spec.origin):
                        self.pending.append(fullname)
                    else:
                        self.add_foreign(spec.origin)
            return spec

        importlib_files.PathFinder.find_spec = classmethod(find_spec)
        EnvironmentWatch(self.add_read)


# ---- importing ----

BUILT_IN = (importlib_core.BuiltinImporter, importlib_core.FrozenImporter)


class Guard:
    """First of sys.meta_path while the zygote imports: stops imports that the zygote must not make."""

    def __init__(self, places, names):
        self.places, self.names, self.importers = places, names, {}
        self.before = frozenset(initializing())  # of the import system's own start: this file, site

    def find_spec(self, name, path=None, target=None):
        if name in self.names.dropped or name == self.places.module:
            self.stop(name, None)
        if name in self.names.hidden or self.places.is_shadowed(name):
            self.stop(name, self.names.hidden.get(name, name.partition(".")[0]))
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") and finder is not self else None
            if spec is None:
                continue
            if finder not in BUILT_IN and spec.has_location and not self.places.has(spec.origin):
                self.stop(name, None)
            return spec
        return None

    def stop(self, name, shadow):
        self.shadow = shadow
        self.importers.update(dict.fromkeys(set(initializing()) - self.before, shadow))
        raise Dropped(name)


def initializing():
    """The modules whose import is under way."""
    return [name for name, module in list(sys.modules.items())
            if getattr(getattr(module, "__spec__", None), "_initializing", False)]


def count_threads():
    return os.stat("/proc/self/task").st_nlink - 2


def list_descriptors():
    fds = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            fds[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # the one that listed them
    return fds


def threads_left(expected):
    """How many threads there are, after those that end by themselves, and those that end at a fork (their library
    ends them in the handlers of pthread_atfork and starts them again when it needs them, in parent and child)."""
    import time
    end = time.monotonic() + THREAD_END_S
    if count_threads() > expected:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    while count_threads() > expected and time.monotonic() < end:
        time.sleep(0.002)
    return count_threads()


class EnvironmentWatch:
    """Notes looks at variables of one worker. Such a module would keep the values of none."""

    def __init__(self, note=None):
        self.seen = set()
        kind, get_frame = type(os.environ), sys._getframe
        original = kind.__getitem__
        self.restore = lambda: setattr(kind, "__getitem__", original)

        def get(mapping, key):
            if key in OF_ONE_WORKER and mapping is os.environ:
                self.seen.add(key)
                if note:
                    note(key, get_frame(1))
            return original(mapping, key)

        kind.__getitem__ = get


class UnderImport:
    """The name of the module whose import is under way, in a memory file that outlives this process."""

    def __init__(self, fd):
        self.fd = fd

    def read(self):
        name = os.pread(self.fd, 256, 0).partition(b"\0")[0].decode("ascii", "replace")
        return name if is_name(name) else None

    def write(self, name):
        os.pwrite(self.fd, name.encode("ascii", "replace") + b"\0", 0)


class Loader:
    """One pass of imports. What has to be dropped is in names.dropped afterwards."""

    def __init__(self, places, names, under_import, before_import, on_unclean):
        self.places, self.names, self.under_import = places, names, under_import
        self.before_import, self.on_unclean = before_import, on_unclean  # the second: this process can fork nothing any more
        self.guard = Guard(places, names)
        self.n_threads = count_threads()
        self.descriptors = list_descriptors()
        self.unclean = False

    def spoil(self):
        if not self.unclean:
            self.on_unclean()
        self.unclean = True

    def drop_importers(self):
        for name, shadow in self.guard.importers.items():
            if shadow is None:
                self.names.drop(name, "")
            else:
                self.names.hidden[name] = shadow
                self.names.wanted.pop(name, None)
            self.spoil()
        self.guard.importers.clear()

    def fault_of(self, watch):
        """What the last import has left that must not be shared, in words; or None."""
        if watch.seen:
            return "reads %s when it is imported" % ", ".join(sorted(watch.seen))
        if count_threads() > self.n_threads and threads_left(self.n_threads) > self.n_threads:
            self.n_threads = count_threads()
            return "leaves a thread running"
        cuda = sys.modules.get("torch.cuda")
        try:
            if cuda is not None and cuda.is_initialized():
                return "initialises CUDA"
        except Exception:
            pass  # a module of that name that is not torch's
        fds = list_descriptors()
        opened = [link for fd, link in fds.items() if self.descriptors.get(fd) != link]
        if opened:
            self.descriptors = fds
            return "leaves %s open" % opened[0]
        return None

    def import_one(self, name, is_fresh):
        before = set(sys.modules)
        watch = EnvironmentWatch()
        fault = None
        self.under_import.write(name)
        try:
            __import__(name)
        except Dropped:
            self.guard.importers.setdefault(name, self.guard.shadow)
        except BaseException as error:
            fault = "cannot be imported (%s)" % message_of(error)
        watch.restore()
        self.under_import.write("")
        if fault and not watch.seen and (self.unclean or not is_fresh):
            self.names.suspects[name] = None  # what was imported before may be the cause
            self.spoil()
            fault = None
        else:
            fault = self.fault_of(watch) or fault
        if fault:
            self.names.drop(name, fault)
            self.spoil()
            for new in set(sys.modules) - before:
                del sys.modules[new]  # what imports it is found by this
        self.drop_importers()

    def import_all(self, names, is_fresh):
        for name in names:
            parts = name.split(".")
            for i in range(1, len(parts) + 1):
                prefix = ".".join(parts[:i])
                if prefix in self.names.dropped or prefix in self.names.hidden or self.places.is_shadowed(prefix) or \
                        prefix == self.places.module:
                    break
                if prefix not in sys.modules:
                    self.before_import()
                    self.import_one(prefix, is_fresh)

    def load(self):
        import gc
        path, meta_path = sys.path[:], sys.meta_path
        was_enabled = gc.isenabled()
        gc.disable()  # nothing of an import is garbage; looking for it costs a tenth of the time
        sys.path[:] = [p for p in path if os.path.abspath(p) not in self.places.first]
        meta_path.insert(0, self.guard)
        try:
            suspects = list(self.names.suspects)
            self.names.suspects.clear()
            self.import_all(suspects, True)
            if not self.unclean:
                self.import_all(list(self.names.wanted), False)
        finally:
            meta_path.remove(self.guard)
            sys.path[:] = path
        if was_enabled:
            gc.enable()
        gc.freeze()  # the collector does not touch, and so copy, what is shared


# ---- the process as seen from outside ----

class Title:
    """The command line in /proc: new text by PR_SET_MM_MAP, or nothing where the kernel has it not."""

    def __init__(self):
        import ctypes
        self.ctypes = ctypes
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = self.libc.sbrk.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]

    def prctl(self, option, value):
        c_long = self.ctypes.c_ulong
        return self.libc.prctl(option, c_long(value), c_long(0), c_long(0), c_long(0))

    def set_comm(self, name):
        self.prctl(PR_SET_NAME, self.ctypes.cast(self.ctypes.c_char_p(name), self.ctypes.c_void_p).value)

    def set(self, words, environment):
        """Memory of the kernel's kind: words, then variables. Never freed: /proc reads it for the life of the process."""
        ctypes = self.ctypes
        arguments = b"".join(word + b"\0" for word in words)
        variables = b"".join(word + b"\0" for word in environment)
        size = len(arguments) + len(variables)
        at = self.libc.mmap(None, size, 3, 0x22, -1, 0)  # readable and writable, private and anonymous
        if at in (None, ctypes.c_void_p(-1).value):
            return
        ctypes.memmove(at, arguments + variables, size)
        stat = read_bytes("/proc/self/stat").rpartition(b")")[2].split()
        field = lambda number: int(stat[number - 3])
        middle = at + len(arguments)
        head = [field(26), field(27), field(45), field(46), field(47), 0, field(28), at, middle, middle, at + size, 0]
        block = (ctypes.c_uint64 * 13)(*head, 0xffffffff << 32)  # auxv_size 0, exe_fd -1: both stay as they are
        call = (PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(block), ctypes.c_ulong(ctypes.sizeof(block)), ctypes.c_ulong(0))
        prctl, sbrk = self.libc.prctl, self.libc.sbrk
        # The end of the heap has to stay what it is: with a lower one the kernel would map new pages over used ones.
        # Nothing that these two lines allocate comes from the heap.
        block[5] = sbrk(0)
        prctl(*call)


def collapse_pages(libc, ctypes):
    """Huge pages for what the imports have filled: a fork copies a table entry for each page, and the end of a process frees it, which takes
    longer than all else at a restart with small pages. Linux 6.1 or later; elsewhere pages stay as they are."""
    madvise = libc.madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in read_bytes("/proc/self/maps").splitlines():
        fields = line.split()
        if fields[1] != b"rw-p" or len(fields) > 5 and fields[5] != b"[heap]":
            continue
        begin, end = (int(address, 16) for address in fields[0].split(b"-"))
        for at in range(-(-begin // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
            madvise(at, HUGE_PAGE, MADV_COLLAPSE)  # fails where nothing was written


def seed_again():
    """What a fork would share and an exec makes anew: random.seed() is done by the random module itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))


# ---- orders ----

def words_of(data):
    return [int.from_bytes(data[i:i + 4], sys.byteorder) for i in range(0, 16, 4)]


class Order:
    def __init__(self, record, fds):
        self.fds = fds
        self.kind, self.worker, self.guardian, self.crun = words_of(record)
        if self.kind == START and len(fds) >= 2:
            self.n_arguments, self.n_variables, given, self.texts_at = words_of(os.pread(fds[0], HEAD_SIZE, 0))
            self.numbers = [number for number in range(LAST_FD + 1) if number < WORKER_FD or given >> number & 1]
            if len(fds) == 2 + len(self.numbers):
                self.start, self.handshake = fds[:2]

    def read_texts(self):
        size = os.fstat(self.start).st_size
        texts = os.pread(self.start, size, 0)[self.texts_at:].split(b"\0")
        n = 1 + self.n_arguments
        self.argv, self.environment = texts[1:n], texts[n:n + self.n_variables]

    def place_descriptors(self):
        """Numbers of the worker: 0, 1, 2, then those for notices and memory. All others are above and get closed."""
        for number, fd in zip(self.numbers, self.fds[2:]):
            os.dup2(fd, number, True)
        os.set_inheritable(self.handshake, False)

    def close(self):
        for fd in self.fds:
            os.close(fd)

    def answer(self, pid, text=""):
        """To the guardian, through the socket of this start: pid 0 is a refusal. It replies with one byte, or nothing."""
        import _socket
        handshake = _socket.socket(fileno=os.dup(self.handshake))
        try:
            handshake.send(pid.to_bytes(4, sys.byteorder) + text.encode("utf-8", "replace")[:TEXT_SIZE - 1])
            return pid and handshake.recv(1)
        except OSError:
            return None
        finally:
            handshake.close()


class Zygote:
    def __init__(self):
        import _socket
        self.origin = Origin()
        self.control = _socket.socket(fileno=self.move_up(CONTROL_FD))
        self.source = self.move_up(SOURCE_FD)
        self.under_import = UnderImport(self.move_up(IMPORT_FD))
        # Descriptors that arrive with orders get no number that a worker has.
        while os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) < LAST_FD:
            pass
        self.pid = os.getpid()
        self.last_loading = 0.0
        self.is_awaited = self.origin.n_passes == 0  # starts wait for what is being imported
        self.is_loaded = self.has_remarked = False

    @staticmethod
    def move_up(fd):
        import fcntl
        new = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FREE_FD)
        os.close(fd)
        return new

    def report(self, kind, value=0, a=0, b=0, text=""):
        import time
        if kind == LOADING:
            now = time.monotonic()
            if now < self.last_loading + 1:
                return
            self.last_loading = now
            value = int(not self.is_awaited)
        record = b"".join([kind.to_bytes(4, sys.byteorder), value.to_bytes(4, sys.byteorder, signed=True),
                           a.to_bytes(8, sys.byteorder), b.to_bytes(8, sys.byteorder),
                           text.encode("utf-8", "replace")[:TEXT_SIZE - 1].ljust(TEXT_SIZE, b"\0")])
        try:
            self.control.send(record)
        except OSError:
            os._exit(0)  # the guardian has ended

    def capture_output(self):
        """stdout and stderr of the imports, in memory; the same for C code."""
        for fd in (1, 2):
            memory = os.memfd_create("crun-zygote-output")
            os.dup2(memory, fd, True)
            os.close(memory)

    def printed(self):
        return [os.pread(fd, os.fstat(fd).st_size, 0) for fd in (1, 2)]

    # -- life --

    def check(self):
        if sys.implementation.name != "cpython":
            raise Refused("the interpreter is %s, not CPython" % sys.implementation.name)
        if not words_of_script(self.origin.argv):
            raise Refused("the command line is not python -u SCRIPT, -m MODULE or -c CODE")
        if not sys.executable:
            raise Refused("the interpreter does not know its own path")

    def prepare(self):
        sys.path[:] = [p for p in sys.path if p != self.origin.own_path]
        sys.path_importer_cache.pop(self.origin.own_path, None)
        self.check()
        self.places = Places(self.origin)
        self.places.look()
        self.title = Title()
        self.notes = Notes()
        self.names = Names(self.places, self.origin)
        self.drop_fatal()
        self.report_dropped()
        self.capture_output()
        self.customize_site()
        self.title.set_comm(b"crun-zygote")
        self.title.set([b"crun-zygote", os.fsencode(os.path.basename(os.fsdecode(
            self.origin.argv[words_of_script(self.origin.argv) - 1])))], [])
        self.learned = 0
        self.own_modules = frozenset(sys.modules)

    def drop_fatal(self):
        """The module whose import has ended the zygote before this one."""
        name = self.under_import.read()
        if name:
            self.names.drop(name, "ends the interpreter when it is imported, or its import does not end")
            self.names.write()
            self.under_import.write("")

    def customize_site(self):
        """The sitecustomize that this one stands in for."""
        self.site_module = None
        own = sys.modules.pop("sitecustomize", None)
        try:
            import sitecustomize
            self.site_module = sitecustomize
        except ImportError as error:
            if error.name != "sitecustomize":
                raise Refused("sitecustomize fails: %s" % message_of(error))
        except BaseException as error:
            raise Refused("sitecustomize fails: %s" % message_of(error))
        finally:
            sys.modules["sitecustomize"] = own

    def load(self):
        import time
        begin = time.monotonic()
        self.last_loading = 0.0
        self.names.write()
        self.report(LOADING)  # the guardian kills a zygote that imports when the job ends
        self.places.look()
        loader = Loader(self.places, self.names, self.under_import, self.before_import, self.stop_waits)
        loader.load()
        if loader.unclean:
            self.report_dropped()
            self.names.write()
            if self.origin.n_passes + 1 >= PASSES_MAX:
                raise Refused("imports leave something that cannot be shared after %d passes" % PASSES_MAX)
            self.execute_again()
        if threads_left(1) > 1:
            raise Refused("a thread runs that no import has left")
        collapse_pages(self.title.libc, self.title.ctypes)
        status = read_bytes("/proc/self/status")
        anonymous = int(status.partition(b"RssAnon:")[2].split()[0]) if b"RssAnon:" in status else 0
        self.report(READY, sum(name in sys.modules for name in self.names.wanted), anonymous,
                    int((time.monotonic() - begin) * 1e6))
        self.is_awaited, self.origin.n_passes = False, 0
        self.remark()

    def report_dropped(self):
        for name, reason in self.names.unreported.items():
            self.report(DROPPED, text="%s %s" % (name, reason))
        self.names.unreported.clear()

    def stop_waits(self):
        """This pass has to be repeated: workers that wait for it are started by exec."""
        self.is_awaited, self.last_loading = False, 0.0
        self.report_dropped()
        self.before_import()

    def before_import(self):
        """By LOADING the guardian starts workers that do not wait; what lies in the socket keeps their descriptors open."""
        self.report(LOADING)
        order = None if self.is_awaited else self.receive(0)
        while order is not None:
            if order.kind == END:
                self.end()
            order.close()
            order = self.receive(0)

    def execute_again(self):
        os.dup2(self.control.fileno(), CONTROL_FD, True)
        os.dup2(self.source, SOURCE_FD, True)
        os.dup2(self.under_import.fd, IMPORT_FD, True)
        self.origin.execute_again(self.names.found())

    def remark(self):
        """One line when a tenth of the modules is hidden, or most are in a folder that nothing is imported from beforehand."""
        n_wanted, hidden, notes = len(self.names.wanted), list(self.names.hidden.values()), []
        for name in set(hidden):
            if 10 * hidden.count(name) >= n_wanted:
                notes.append((hidden.count(name), "%s hides a module of the library" % self.places.shadows.get(name, name)))
        for line in self.notes.lines():
            n, _, folder = line[1:].partition(" ")
            if line[:1] == "@" and int(n) > n_wanted:
                notes.append((int(n), "%s is not a site-packages folder, and may change between generations" % folder))
        if notes and not self.has_remarked:
            self.has_remarked = True
            self.report(REMARK, text="%d modules are imported by each worker: %s" % max(notes))

    def check_shadows(self, orders):
        """The script's folder may have got a module of a name that is loaded from the library."""
        before = self.places.shadows
        self.places.look()
        if self.places.shadows == before and self.is_loaded:
            return
        for name in list(sys.modules):
            spec = getattr(sys.modules.get(name), "__spec__", None)
            if "." not in name and self.places.is_shadowed(name) and getattr(spec, "has_location", False):
                if spec.origin and self.places.has(spec.origin) and name not in ("site", "os", "sitecustomize"):
                    reason = "%s hides a module of the library" % self.places.shadows[name]
                    if name in self.own_modules:
                        raise Refused(reason)
                    self.refuse(orders, reason)
                    self.execute_again()
        self.is_loaded = True

    @staticmethod
    def refuse(orders, reason):
        for order in orders:
            order.answer(0, reason)
            order.close()

    def receive(self, timeout_ms):
        """The next order; None when there is none in time. Ends the process with the guardian."""
        import _socket
        import select
        poll = select.poll()
        poll.register(self.control.fileno(), select.POLLIN)
        if not poll.poll(timeout_ms):
            return None
        record, ancillary, flags, _ = self.control.recvmsg(ORDER_SIZE, _socket.CMSG_SPACE(4 * N_FDS_MAX),
                                                           _socket.MSG_CMSG_CLOEXEC)
        fds = []
        for level, kind, data in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds += [int.from_bytes(data[i:i + 4], sys.byteorder) for i in range(0, len(data) // 4 * 4, 4)]
        if len(record) < ORDER_SIZE:
            self.end()
        return Order(record, fds)

    def end(self):
        self.take_notes()
        self.names.write()
        os._exit(0)

    def take_notes(self):
        """What the first worker has noted. Returns whether any name is new."""
        lines = self.notes.lines()
        for name, _, reason in (line[1:].partition(" ") for line in lines if line[:1] == "-"):
            self.names.drop(name, reason)
        return self.names.add(line for line in lines if is_name(line))

    def learn(self, has_paused):
        """While workers run: imports what they have imported, when their imports have paused, as those of an ended generation."""
        size = self.notes.size()
        if size == self.learned or not has_paused and size != self.seen:
            self.seen = size
            return
        self.learned = size
        is_new = self.take_notes()
        self.report_dropped()
        if is_new:
            self.load()
        self.remark()

    def serve(self):
        """Forks workers for ever. Returns in a worker only, with its order."""
        rounds, self.seen = 1, 0
        while True:
            order = self.receive(LEARN_FIRST_MS if rounds == 0 else LEARN_INTERVAL_MS if rounds < LEARN_QUICK_ROUNDS else LEARN_SLOW_MS)
            if order is None:
                self.learn(rounds == 0)
                rounds += 1
                continue
            rounds, orders = int(self.notes.size() == self.learned), []  # 0: the generation before has imported more
            while order is not None:
                if order.kind == END:
                    self.end()
                if hasattr(order, "handshake"):
                    orders.append(order)
                else:
                    order.close()
                order = self.receive(0) if len(orders) < N_ORDERS_MAX else None
            if orders:
                order = self.fork(orders)
                if order:
                    return order

    def fork(self, orders):
        """In the worker: its order. The helper ends at once, and the guardian adopts what it has forked."""
        self.check_shadows(orders)
        if threads_left(1) > 1:
            raise Refused("a thread runs")
        adopted, tell = os.pipe()
        try:
            helper = os.fork()
        except OSError as error:
            helper = -1
            for order in orders:
                order.answer(0, message_of(error))
        if helper == 0:
            order = self.order = self.fork_all(orders)
            os.close(tell)
            if not os.read(adopted, 1):
                os._exit(127)  # the zygote has ended
            os.close(adopted)
            for other in orders:
                if other is not order:
                    other.close()
            return order
        for order in orders:
            order.close()
        os.close(adopted)
        if helper > 0:
            os.waitpid(helper, 0)
            os.write(tell, b"x" * len(orders))
        os.close(tell)
        return None

    @staticmethod
    def fork_all(orders):
        for order in orders:
            try:
                if os.fork() == 0:
                    return order
            except OSError as error:
                order.answer(0, message_of(error))
        os._exit(0)

    # -- in the worker --

    def become_worker(self, order):
        import atexit
        import gc
        origin, title = self.origin, self.title
        printed = self.printed()
        order.read_texts()
        # The guardian is the parent now; it may have ended before the line that makes its end count.
        title.prctl(PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != order.guardian:
            os._exit(127)
        os.setsid()
        title.prctl(PR_SET_PTRACER, order.crun)  # as spawn_worker_os.c
        order.place_descriptors()
        for fd in set(list_descriptors()) - set(range(LAST_FD + 1)) - {order.handshake}:
            self.close_quietly(fd)
        for number in range(WORKER_FD, LAST_FD + 1):
            if number not in order.numbers:
                self.close_quietly(number)
        if os.getcwd() != origin.cwd:
            os.chdir(origin.cwd)
        os.umask(origin.umask)
        self.set_environment(order.environment)
        n = words_of_script(order.argv)
        sys.argv[1:] = [os.fsdecode(word) for word in order.argv[n:]]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv[:] = [os.fsdecode(word) for word in order.argv]
        title.set(order.argv, order.environment)
        title.set_comm(origin.comm)
        seed_again()
        # The interpreter's end collects garbage of the imports, too, as in a worker that was executed.
        atexit.register(gc.unfreeze)
        if order.worker == 0:
            self.notes.watch(self.places)
        if not order.answer(os.getpid()):
            os._exit(127)  # the guardian does not want it any more
        os.close(order.handshake)
        for fd, text in zip((1, 2), printed):
            while text:
                text = text[os.write(fd, text):]

    @staticmethod
    def close_quietly(fd):
        try:
            os.close(fd)
        except OSError:
            pass  # it was not open

    @staticmethod
    def set_environment(variables):
        pairs = [variable.partition(b"=")[::2] for variable in variables]
        for name in list(os.environb):
            del os.environb[name]
        for name, value in pairs:
            if name:
                os.environb[name] = value


def main():
    """Returns in a worker only, with the sitecustomize module that it should have, or None."""
    globals().update(__loader__=None, __spec__=None)  # tracebacks that modules format would look for the source
    try:
        zygote = Zygote()
    except BaseException:
        os._exit(70)
    try:
        zygote.prepare()
        zygote.load()
        order = zygote.serve()
        zygote.become_worker(order)
        return zygote.site_module
    except BaseException as error:
        if os.getpid() != zygote.pid:  # a worker that has not begun: the guardian starts it by exec
            zygote.order.answer(0, message_of(error))
            os._exit(127)
        if isinstance(error, Refused):
            zygote.report(REFUSED, text=str(error))
            os._exit(0)
        zygote.report(REFUSED, text="the zygote fails: %s" % message_of(error))
        os._exit(70)
