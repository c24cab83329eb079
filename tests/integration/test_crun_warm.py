"""--warm: workers that are forked from an interpreter that has imported their modules, beside workers that are executed."""

import json
import os
import pathlib
import re
import signal
import sys
import sysconfig
import textwrap
import time

import pytest

import jobs

DUMP = jobs.ROOT / "tests/workers/warm_dump.py"
REPORT_TIMES = re.compile(r"[\d.]+ s after its start|(?i:pid:? \d+)|time +: .*|process \d+|host +: .*|\d\d:\d\d:\d\d|0x[0-9a-f]+"
                          r"|^crun: warm start: .*\n", re.M)


@pytest.fixture
def cache(tmp_path):
    return {**os.environ, "PYTHON_EXEC": sys.executable, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def crun(environment, *words, **more):
    return jobs.run([jobs.crun(), *map(str, words)], timeout=120, env=environment, **more)


def warm(environment, *words, **more):
    """The second run of two: the first one has made the list of modules."""
    crun(environment, "--warm", *words, **more)
    return crun(environment, "--warm", *words, **more)


def events(path, kind):
    return [line for line in jobs.whole_lines(path) if line["event"] == kind]


def modules(environment):
    folder = pathlib.Path(environment["XDG_CACHE_HOME"]) / "crun"
    lines = [line for file in folder.glob("warm-*") for line in file.read_text().splitlines()]
    return {l[1:] for l in lines if l[:1] == "+"}, dict(l[1:].split(" ", 1) for l in lines if l[:1] == "-")


# ---- a worker cannot see how it was started ----

def dumps(environment, folder, how, *words, n=2, **more):
    folder.mkdir()
    name = folder / "dump"
    options, _, script = " ".join(map(str, words)).partition("::")
    for _ in range(2 if how == "--warm" else 1):
        p = crun(environment, how, f"--nproc-per-node={n}", f"--event-log={folder}/events", *options.split(),
                 *script.split(), name, **more)
        assert p.returncode == 0, p.stderr
    if how == "--warm":
        assert events(folder / "events", "warm")[-1]["modules"] > 50  # else this compares nothing
        assert "starts by exec" not in p.stderr
    found = [json.loads(pathlib.Path(f"{name}.{rank}").read_text().replace(str(folder), "FOLDER")) for rank in range(n)]
    return [state for state, _ in found], [secrets for _, secrets in found], p


WAYS = {"path": ("::", DUMP), "relative path": ("::", "warm_dump.py"), "module": ("-m ::", "warm_dump"),
        "run-path": ("--run-path ::", DUMP), "arguments of one rank": ("::", DUMP, "x${local_rank}y", "--rank=$local_rank"),
        "output in files": ("-r3 --log-dir=logs ::", DUMP), "bound": ("--numa-binding=exclusive ::", DUMP),
        "virtual rank": ("--virtual-local-rank ::", DUMP)}


@pytest.mark.parametrize("way", WAYS)
def test_a_forked_worker_is_as_one_that_was_executed(cache, tmp_path, way):
    if way == "run-path":
        pytest.importorskip("torch")
    work = DUMP.parent if way in ("relative path", "module", "run-path") else tmp_path
    words = [str(w).replace("logs", str(tmp_path / "logs")) for w in WAYS[way]]
    executed, _, p = dumps({**cache, "CRUN_WARM": "0", "ODD": "a=b\nc"}, tmp_path / "cold", "--exit-code=torchrun", *words, cwd=work)
    forked, secrets, q = dumps({**cache, "CRUN_WARM": "0", "ODD": "a=b\nc"}, tmp_path / "warm", "--warm", *words, cwd=work)
    for rank in range(2):
        for field in executed[rank]:
            assert forked[rank][field] == executed[rank][field], field
    assert sorted(q.stdout.splitlines()) == sorted(p.stdout.splitlines())
    if way != "run-path":  # which prints what importing torch says
        assert sorted(q.stderr.splitlines()) == sorted(p.stderr.splitlines())
    assert all(a != b for a, b in zip(*secrets)), "workers share random numbers"


def test_random_numbers_of_numpy_differ(cache, tmp_path):
    pytest.importorskip("numpy")
    _, secrets, _ = dumps(cache, tmp_path / "warm", "--warm", "::", DUMP, "numpy")
    assert "numpy" in modules(cache)[0] and len(secrets[0]) == 3
    assert all(a != b for a, b in zip(*secrets))


def test_a_search_path_of_the_user(cache, tmp_path):
    """PYTHONPATH is the user's again, and a module from there is never imported beforehand."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/users_own.py").write_text("import sys; sys.stderr.write('imported\\n')")
    script = tmp_path / "script.py"
    script.write_text("import users_own, json, os, sys; print(os.environ['PYTHONPATH'], sys.path[1], users_own.__file__)")
    environment = {**cache, "PYTHONPATH": str(tmp_path / "own")}
    cold, hot = crun(environment, script), warm(environment, script)
    assert hot.stdout == cold.stdout and hot.stderr == cold.stderr == "imported\n"
    assert "json" in modules(cache)[0] and "users_own" not in modules(cache)[0]


def test_a_file_of_the_script_hides_a_module_of_the_library(cache, tmp_path):
    """Also when it appears after the list of modules was made."""
    script = tmp_path / "script.py"
    script.write_text("import calendar, json; print(calendar.__file__)")
    assert warm(cache, script).stdout == crun(cache, script).stdout
    assert "calendar" in modules(cache)[0]
    (tmp_path / "calendar.py").write_text("")
    assert crun(cache, "--warm", script).stdout == f"{tmp_path}/calendar.py\n"


# ---- restarts ----

def test_the_process_that_forks_outlives_generations(cache, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import decimal, os, pathlib, signal, sys, time
        n = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        os.write(1, f"{n} {os.environ['RANK']} {os.getppid()}\\n".encode())
        pathlib.Path(f"{sys.argv[1]}.{n}.{os.environ['RANK']}").touch()
        if n < 3 and os.environ["RANK"] == "1":
            while not all(os.path.exists(f"{sys.argv[1]}.{n}.{i}") for i in range(3)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600 if n < 3 else 0)
        """))
    log = tmp_path / "events"
    p = crun(cache, "--warm", "--max-restarts=3", "--restart-pause=0", "--nproc-per-node=3", f"--event-log={log}", script,
             tmp_path / "up")
    assert p.returncode == 0, p.stderr
    lines = [line.split() for line in p.stdout.splitlines()]
    assert sorted((n, rank) for n, rank, _ in lines) == [(str(n), str(r)) for n in range(4) for r in range(3)]
    assert len({guardian for _, _, guardian in lines}) == 1
    assert "decimal" in modules(cache)[0]
    assert [e["generation"] for e in events(log, "ready")] == [0, 1, 2, 3]


def processes_below(pid):
    """{process: its name}."""
    return {p: pathlib.Path(f"/proc/{p}/comm").read_text().strip() for p in jobs.descendants(pid)}


def test_nothing_is_left_when_the_job_is_stopped(cache, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, time; os.write(1, b'up\\n')\ntime.sleep(600)")
    for sig, victim in [(signal.SIGTERM, "crun"), (signal.SIGKILL, "crun"), (signal.SIGKILL, "guardian"),
                        (signal.SIGKILL, "zygote")]:
        out = tmp_path / f"out-{sig}-{victim}"
        with open(out, "w") as file:
            p = jobs.subprocess.Popen([jobs.crun(), "--warm", "--nproc-per-node=2", "--shutdown-timeout=5", str(script)],
                                      env=cache, stdout=file, stderr=jobs.subprocess.DEVNULL)
        jobs.wait_for(lambda: out.read_text().count("up") == 2)
        # The keeper has the guardian's name until it has run for the first time.
        names = jobs.wait_for(lambda: (found := processes_below(p.pid)) and list(found.values()).count("job-guardian") == 1 and found)
        below = list(names)
        assert sorted(names.values()).count("crun-zygote") == 1
        assert len(below) - list(names.values()).count("job-keeper") == 4
        os.kill(p.pid if victim == "crun" else next(i for i, n in names.items() if n.endswith(f"-{victim}")), sig)
        if victim == "zygote":  # the workers do not need it; another one is launched
            jobs.wait_for(lambda: set(jobs.descendants(p.pid)) - set(below))
            assert p.poll() is None
            below = {*below, *jobs.descendants(p.pid)}
            p.terminate()
        p.wait(30)
        assert jobs.wait_until(lambda: not any(pathlib.Path(f"/proc/{i}/cmdline").exists() for i in below), 5)


# Beside the script of a worker: finds the zygote, and ends it.
ENDS_ZYGOTE = """
import decimal, os, pathlib, signal, sys, time

def zygotes():
    found = []
    for child in pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split():
        try:
            if pathlib.Path(f"/proc/{child}/comm").read_text() == "crun-zygote\\n":
                found.append(int(child))
        except OSError:
            pass
    return found

def end_zygote():
    while not zygotes():
        time.sleep(0.005)
    os.kill(pid := zygotes()[0], signal.SIGKILL)
    while pid in zygotes():
        time.sleep(0.005)

generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
"""


def test_another_zygote_when_one_is_killed(cache, tmp_path):
    """Between two generations. The one after the next is forked again, once the other zygote has imported the modules."""
    script = tmp_path / "script.py"
    script.write_text("import sys\nis_forked = 'decimal' in sys.modules\n" + ENDS_ZYGOTE + textwrap.dedent("""
        if generation == "0":
            end_zygote()
        while not zygotes() or (generation != "0" and sum('"event":"warm"' in line for line in open(sys.argv[1])) < int(sys.argv[2])):
            time.sleep(0.005)
        if generation != "2":
            raise SystemExit(3)
        print("forked:", is_forked)
        """))
    log = tmp_path / "events"
    for n_zygotes in 2, 4:  # so far; the first run makes the list
        p = crun(cache, "--warm", "--max-restarts=2", "--restart-pause=0", f"--event-log={log}", script, log, n_zygotes)
        assert p.returncode == 0 and (p.stdout == "forked: True\n" or n_zygotes == 2), p.stderr
        assert "warm start: the interpreter that forks workers has ended: another interpreter is started" in p.stderr
        assert "not possible" not in p.stderr


def test_workers_start_by_exec_when_zygotes_end_again_and_again(cache, tmp_path):
    """In one generation; in the next one another is tried."""
    script = tmp_path / "script.py"
    script.write_text(ENDS_ZYGOTE + textwrap.dedent("""
        if generation == "0":
            for _ in range(4):
                end_zygote()
            time.sleep(0.3)
            print("left:", zygotes(), flush=True)
            raise SystemExit(3)
        while not zygotes():
            time.sleep(0.005)
        print("fine")
        """))
    p = crun(cache, "--warm", "--max-restarts=1", script)
    assert p.returncode == 0 and p.stdout == "left: []\nfine\n", p.stderr
    assert p.stderr.count("another interpreter is started") == 3
    assert p.stderr.count("warm start is not possible, workers start by exec: the interpreter that forks workers has ended") == 1


def test_a_replaced_worker_is_forked(cache, tmp_path):
    """--restart-policy=replace: the others keep their processes, and the new one imports nothing."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import sys
        is_forked = "decimal" in sys.modules
        import decimal, os, pathlib, signal, socket, struct, time
        rank, generation = int(os.environ["RANK"]), int(os.environ["CRUN_GENERATION"])
        notices = socket.socket(fileno=int(os.environ["CRUN_NOTICE_FD"]))

        def ready():
            notices.send(struct.pack("<IIIii", 20, 4, generation, rank, 1))
            pathlib.Path(f"{sys.argv[1]}.{generation}.{rank}").touch()
            while not all(os.path.exists(f"{sys.argv[1]}.{generation}.{i}") for i in range(3)):
                time.sleep(0.005)

        ready()
        if (rank, generation) == (1, 0):
            time.sleep(1)  # crun has read all three
            os.kill(os.getpid(), signal.SIGKILL)
        while generation == 0:
            record = notices.recv(4096)
            kind, new = struct.unpack_from("<II", record, 4)
            if kind == 3:
                generation = new
                ready()
        time.sleep(1)
        os.write(1, f"{rank} {os.environ['CRUN_GENERATION']} {is_forked}\\n".encode())
        """))
    for folder in tmp_path / "0", tmp_path / "1":
        folder.mkdir()
        p = crun(cache, "--warm", "--standalone", "--nproc-per-node=3", "--max-restarts=1", "--restart-policy=replace", script,
                 folder / "up")
        assert p.returncode == 0, p.stderr
    assert sorted(p.stdout.splitlines()) == ["0 0 True", "1 1 True", "2 0 True"], p.stderr


# ---- odd scripts ----

ODD = {
    "thread at import": ("import threads_at_import", ("threads_at_import", "leaves a thread running")),
    "thread of a thing it imports": ("import imports_threads", ("threads_at_import", "leaves a thread running")),
    "device at import": ("import opens_device", ("opens_device", "leaves /dev/zero open")),
    "fails": ("try:\n    import json, only_for_workers\nexcept ImportError:\n    pass", None),
    "fails in the zygote alone": ("import fails_in_zygote", ("fails_in_zygote", "cannot be imported (RuntimeError: not here)")),
    "rank at import": ("import reads_rank; print(reads_rank.RANK)", ("reads_rank", "reads RANK when it is imported")),
    "odd words": ("import odd_words", ("odd_words", "cannot be imported (RuntimeError: a?b\\udc80)")),
    "CUDA at import": ("import initialises_cuda", ("initialises_cuda", "initialises CUDA")),
    "prints at import": ("import prints; print(prints.VALUE)", None),
    "forks itself": ("import json\nif os.fork() == 0:\n    print('child')\n    os._exit(0)\nos.wait()", None),
    "reads stdin": ("import json; print(repr(sys.stdin.read()))", None),
    "syntax error": ("import json\nfor", None),
    "exception": ("import json\ndef f(x):\n    return json.loads(x)\nf('{')", None),
    "exit code": ("import json; sys.exit(7)", None),
    "exit text": ("import json; sys.exit('no')", None),
    "signal": ("import json, signal; os.kill(os.getpid(), signal.SIGSEGV)", None),
    "faulthandler": ("import json, faulthandler\nfaulthandler.enable()\nfaulthandler._sigsegv()", None),
    "garbage of an import": ("import makes_garbage", None),
    "no such module": ("import json\nimport no_such_module", None),
}
LIBRARY = {
    "threads_at_import": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "imports_threads": "import threads_at_import",
    "opens_device": "import os\nFD = os.open('/dev/zero', os.O_RDONLY)",
    "odd_words": "if open('/proc/self/comm').read() == 'crun-zygote\\n':\n    raise RuntimeError('a\\0b\\udc80')",
    "initialises_cuda": "import sys, types\nmodule = sys.modules['torch.cuda'] = types.ModuleType('torch.cuda')\n"
                        "module.is_initialized = lambda: True",
    "ends_zygote": "import os\nif open('/proc/self/comm').read() == 'crun-zygote\\n':\n    os.kill(os.getpid(), 11)",
    "exits_zygote": "import os\nif open('/proc/self/comm').read() == 'crun-zygote\\n':\n    os._exit(0)",
    "reads_rank": "import os\nRANK = os.environ.get('RANK')",
    "makes_garbage": "class Garbage:\n    def __del__(self, write=__import__('os').write):\n        write(1, b'collected\\n')\n"
                     "garbage = Garbage()\ngarbage.itself = garbage\ndel garbage",
    "wandbx": "import os",
    "liga": "try:\n    import wandbx\nexcept ImportError:\n    wandbx = None",
    "ligb": "import liga",
    "slow_in_zygote": "import os, time\nif open('/proc/self/comm').read() == 'crun-zygote\\n':\n"
                      "    open(os.environ['MARK'], 'w').close()\n    time.sleep(6)",
    "fails_in_zygote": "if open('/proc/self/comm').read() == 'crun-zygote\\n':\n    raise RuntimeError('not here')",
    "once": "import os, sys\nif hasattr(sys, 'once'):\n    raise RuntimeError('registered twice')\nsys.once = True",
    "prints": "import sys\nprint('out of the import')\nsys.stderr.write('error of the import\\n')\nVALUE = 1",
}


@pytest.fixture(scope="module")
def environment_with_library(tmp_path_factory):
    """A virtual environment, as its site-packages may be written to."""
    import venv
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    site = pathlib.Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name, text in LIBRARY.items():
        (site / f"{name}.py").write_text(text + "\n")
    (site / "pack").mkdir()
    (site / "pack/first.py").write_text("")
    (site / "pack/__init__.py").write_text("import pack.first, once, threads_at_import\n")
    return folder / "bin/python"


@pytest.mark.parametrize("name", ODD)
def test_odd_scripts(cache, tmp_path, environment_with_library, name):
    """The same output, exit code and report as without --warm; what was dropped is named in the first run alone."""
    text, dropped = ODD[name]
    script = tmp_path / "script.py"
    script.write_text("import os, sys\n" + text + "\nprint('end', os.environ['RANK'])\n" if name != "syntax error" else text)
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    words = ["--nproc-per-node=1", script]
    cold = crun(environment, *words)
    runs = [crun(environment, "--warm", *words) for _ in range(3)]
    for p in runs:
        assert p.returncode == cold.returncode
        assert sorted(p.stdout.splitlines()) == sorted(cold.stdout.splitlines())
        assert sorted(REPORT_TIMES.sub("", p.stderr).splitlines()) == sorted(REPORT_TIMES.sub("", cold.stderr).splitlines())
    lines = [line for p in runs for line in p.stderr.splitlines() if line.startswith("crun: warm start")]
    assert lines == (["crun: warm start: each worker imports %s itself: it %s" % dropped] if dropped else [])
    if dropped:
        assert dropped[0] in modules(environment)[1]


@pytest.mark.parametrize("name", ["ends_zygote", "exits_zygote"])
def test_a_module_whose_import_ends_the_zygote(cache, tmp_path, environment_with_library, name):
    """It is dropped, once and for all: the runs after that are warm without it."""
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    script, log = tmp_path / "script.py", tmp_path / "events"
    script.write_text("import sys; is_forked = 'decimal' in sys.modules\n" + textwrap.dedent(f"""
        import decimal, {name}, glob, time
        while len(sys.argv) > 1 and not any("-{name} " in open(path).read() for path in glob.glob(sys.argv[1])):
            time.sleep(0.01)
        time.sleep(0.3)
        print("forked:", is_forked)
        """))
    lines = []
    for words in [], [cache["XDG_CACHE_HOME"] + "/crun/warm-" + 24 * "[0-9a-f]"], []:
        p = crun(environment, "--warm", script, *words)
        assert p.returncode == 0, p.stderr
        lines += [line for line in p.stderr.splitlines() if "was not forked" not in line]
    assert p.stdout == "forked: True\n"
    assert lines == ["crun: warm start: the interpreter that forks workers has ended: another interpreter is started",
                     f"crun: warm start: each worker imports {name} itself: it ends the interpreter when it is imported, or its "
                     "import does not end"]


# ---- what is left to the workers ----

SEES = "import sys; loaded = set(sys.modules)\n"


def sees(folder, names, more=""):
    """A script that prints which of these modules were there when it began, and where they are."""
    script = folder / "script.py"
    script.write_text(f"{SEES}import {', '.join(names)}\n{more}\nfor name in {names!r}:\n"
                      "    print(name, name in loaded, getattr(sys.modules.get(name), '__file__', None))\n")
    return script


def test_only_a_module_hides_a_module(cache, tmp_path, environment_with_library):
    """Not the folder that wandb.init() makes beside the script, and not a text about it."""
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    (tmp_path / "wandbx").mkdir()
    (tmp_path / "wandbx/run-1.json").write_text("")
    (tmp_path / "liga.md").write_text("")
    (tmp_path / "ligb.sh").write_text("")
    p = warm(environment, sees(tmp_path, ["wandbx", "liga", "ligb"]))
    assert p.stderr == "" and [line.split()[1] for line in p.stdout.splitlines()] == ["True"] * 3, p.stdout


@pytest.mark.parametrize("entry", ["wandbx.py", "wandbx/__init__.py", "wandbx.pyc", f"wandbx{sysconfig.get_config_var('EXT_SUFFIX')}"])
def test_a_hidden_module_counts_again_when_nothing_hides_it(cache, tmp_path, environment_with_library, entry):
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    script = tmp_path / "script.py"
    script.write_text(SEES + "try:\n    import ligb\nexcept ImportError:\n    pass\nprint('liga' in loaded, 'ligb' in loaded)\n")
    assert warm(environment, script).stdout == "True True\n"
    path = tmp_path / entry
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    for _ in range(2):
        p = crun(environment, "--warm", script)
        assert p.returncode == 0 and p.stdout == "False False\n", p.stderr
    named = tmp_path / entry.partition("/")[0]
    assert p.stderr == f"crun: warm start: 2 modules are imported by each worker: {named} hides a module of the library\n"
    assert not {"liga", "ligb"} & set(modules(environment)[1])
    path.unlink()
    assert crun(environment, "--warm", script).stdout == "True True\n"


def test_a_module_that_appears_while_the_job_runs(cache, tmp_path, environment_with_library):
    """It hides the one that is loaded: the new workers import it themselves, and the reason is named."""
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    script = tmp_path / "script.py"
    script.write_text(SEES + textwrap.dedent(f"""
        import liga, decimal, os, pathlib
        generation = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if len(sys.argv) == 1:
            sys.exit()
        print(generation, liga.wandbx.__file__, "decimal" in loaded, flush=True)
        if generation == "0":
            pathlib.Path({str(tmp_path)!r}, "wandbx").mkdir()
        if generation == "1":
            pathlib.Path({str(tmp_path)!r}, "wandbx.py").touch()
        sys.exit(generation != "2")
        """))
    crun(environment, "--warm", script)
    p = crun(environment, "--warm", "--max-restarts=2", "--restart-pause=0", script, "x")
    library = next((environment_with_library.parent.parent / "lib").glob("python*/site-packages/wandbx.py"))
    assert p.stdout == f"0 {library} True\n1 {library} True\n2 {tmp_path}/wandbx.py False\n", p.stderr
    lines = [line for line in p.stderr.splitlines() if "warm start" in line]
    assert lines[:1] == [f"crun: warm start: local rank 0 was not forked and starts by exec: {tmp_path}/wandbx.py hides a module "
                         "of the library"], p.stderr


def took_s(log, generation):
    return next(e["took_ns"] for e in events(log, "ready") if e["generation"] == generation) / 1e9


def test_a_restart_does_not_wait_for_imports(cache, tmp_path, environment_with_library):
    """The zygote imports what the first generation has imported: the second one starts by exec, at once."""
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library), "MARK": str(tmp_path / "mark")}
    script, log = tmp_path / "script.py", tmp_path / "events"
    script.write_text(textwrap.dedent("""
        import os, sys, time
        import slow_in_zygote
        import decimal
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            while not os.path.exists(os.environ["MARK"]):
                time.sleep(0.01)
            sys.exit(1)
        """))
    p = crun(environment, "--warm", "--max-restarts=1", "--nproc-per-node=2", "--restart-pause=0", f"--event-log={log}", script)
    assert p.returncode == 0 and "warm start" not in p.stderr, p.stderr
    assert took_s(log, 1) < 3, "it has waited for the import"


def test_a_job_that_fails_at_its_start_gets_warm(cache, tmp_path):
    """What a generation has imported is imported while the next one starts."""
    script = tmp_path / "script.py"
    script.write_text(f"{SEES}import decimal, os, time\nos.write(1, b'%d' % ('decimal' in loaded))\n"
                      "time.sleep(1 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' else 0)\n"
                      "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '2')")
    p = crun(cache, "--warm", "--max-restarts=2", "--restart-pause=0", script)
    assert p.returncode == 0 and p.stdout == "001", p.stderr


def test_a_start_does_not_wait_for_a_second_pass(cache, tmp_path, environment_with_library):
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library), "MARK": str(tmp_path / "mark")}
    script, log = tmp_path / "script.py", tmp_path / "events"
    script.write_text("import threads_at_import, slow_in_zygote")
    crun(environment, "--warm", script)
    p = crun(environment, "--warm", f"--event-log={log}", script)
    assert p.returncode == 0 and "threads_at_import itself: it leaves a thread" in p.stderr
    assert took_s(log, 0) < 3, "it has waited for the import"


def test_a_failed_import_is_judged_in_a_new_process(cache, tmp_path, environment_with_library):
    """`once` fails after `pack`, which was dropped, had imported it."""
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    script = tmp_path / "script.py"
    script.write_text(SEES + "import pack, once, glob, time\n"
                      "while len(sys.argv) > 1 and not any('-pack ' in open(f).read() for f in glob.glob(sys.argv[1])):\n"
                      "    time.sleep(0.01)\nprint('once' in loaded)\n")
    crun(environment, "--warm", script)
    crun(environment, "--warm", script, cache["XDG_CACHE_HOME"] + "/crun/warm-" + 24 * "[0-9a-f]")
    p = crun(environment, "--warm", script)
    assert p.returncode == 0 and p.stdout == "True\n", p.stderr
    assert "once" in modules(environment)[0] and "once" not in modules(environment)[1]


def test_readers_of_the_rank_are_noted_while_the_list_is_made(cache, tmp_path, environment_with_library):
    """So the first warm start has all else."""
    environment = {**cache, "PYTHON_EXEC": str(environment_with_library)}
    script, log = tmp_path / "script.py", tmp_path / "events"
    script.write_text(SEES + "import decimal, reads_rank\nprint('decimal' in loaded, 'reads_rank' in loaded)")
    crun(environment, "--warm", script)
    assert modules(environment)[0] >= {"decimal"} and "reads_rank" not in modules(environment)[0]
    p = crun(environment, "--warm", f"--event-log={log}", script)
    assert p.stdout == "True False\n"
    assert p.stderr == "crun: warm start: each worker imports reads_rank itself: it reads RANK when it is imported\n"


def test_folders_that_a_pth_file_names(cache, tmp_path):
    """Another site-packages is as good; a project may change, which is mentioned when most modules are there."""
    import venv
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    site = pathlib.Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    overlay, project = tmp_path / "other/site-packages", tmp_path / "project"
    for folder in overlay, project:
        folder.mkdir(parents=True)
    (site / "more.pth").write_text(f"{overlay}\n{project}\n")
    (overlay / "overlaid.py").write_text("import own0")
    (overlay / "overlaid_too.py").write_text("")
    for i in range(192):
        (project / f"own{i}.py").write_text("")
    environment = {**cache, "PYTHON_EXEC": str(tmp_path / "venv/bin/python")}
    p = warm(environment, sees(tmp_path, ["overlaid_too", "overlaid", "own1"], "time = __import__('time')\n"
                               "for i in range(192): __import__(f'own{i}')\ntime.sleep(2.5)"))
    assert [line.split()[:2] for line in p.stdout.splitlines()] == [["overlaid_too", "True"], ["overlaid", "False"], ["own1", "False"]]
    assert re.search(rf"warm start: \d+ modules are imported by each worker: {project} is not a site-packages folder", p.stderr)


def test_a_small_limit_of_open_files(cache, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{SEES}import decimal, os\nos.write(1, b'%d\\n' % ('decimal' in loaded))")
    words = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", jobs.crun(), "--warm", "--nproc-per-node=40", str(script)]
    for _ in range(2):
        p = jobs.run(words, timeout=120, env=cache)
    assert p.returncode == 0 and p.stderr == "" and p.stdout == 40 * "1\n", p.stderr


@pytest.mark.parametrize("home", ["~", "here"])
def test_without_a_home_there_is_no_list(cache, tmp_path, home):
    """expanduser("~") is "~" for a user without an entry. No folder of that name is made."""
    environment = {**cache, "HOME": home}
    del environment["XDG_CACHE_HOME"]
    script = tmp_path / "script.py"
    script.write_text("import decimal")
    p = warm(environment, script, cwd=tmp_path)
    assert p.returncode == 0 and p.stderr == ""
    assert os.listdir(tmp_path) == ["script.py"]


PTRACER = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int prctl(int option, ...)
{
    unsigned long v[4];
    char line[64];
    va_list list;

    va_start(list, option);
    for (int i = 0; i < 4; i++)
        v[i] = va_arg(list, unsigned long);
    va_end(list);
    if (option == 0x59616d61) {
        int fd = open(getenv("PTRACER_LOG"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        (void)!write(fd, line, (size_t)snprintf(line, sizeof(line), "%d %lu\\n", (int)getpid(), v[0]));
        close(fd);
        return 0;
    }
    return (int)syscall(SYS_prctl, option, v[0], v[1], v[2], v[3]);
}
"""


@pytest.mark.parametrize("how", [[], ["--warm"]])
def test_tools_of_crun_may_trace_each_worker(cache, tmp_path, how):
    """Where Yama restricts ptrace(): forked workers allow it as executed ones do."""
    (tmp_path / "ptracer.c").write_text(PTRACER)
    library = tmp_path / "ptracer.so"
    jobs.subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "ptracer.c"], check=True)
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text("import os; os.write(1, b'%d ' % os.getpid())")
    p = jobs.subprocess.Popen([jobs.crun(), *how, "--nproc-per-node=4", str(script)], stdout=jobs.subprocess.PIPE, text=True,
                              env={**cache, "LD_PRELOAD": str(library), "PTRACER_LOG": str(log)})
    workers = p.communicate(timeout=60)[0].split()
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(workers) == 4 and {tracer for _, tracer in calls} == {str(p.pid)}
    assert set(workers) <= {process for process, _ in calls}, calls


# ---- where it is not possible ----

@pytest.mark.parametrize("words, reason", [
    (["--no-python", "true"], "the program is not a Python script"),
    (["--nproc-per-node=1", "--", "-c", "pass"], "the interpreter has options of its own"),
])
def test_programs_that_cannot_be_warm(cache, words, reason):
    p = crun(cache, "--warm", *words)
    assert p.returncode == 0 and p.stderr == f"crun: --warm has no effect, workers start by exec: {reason}\n"


def test_an_interpreter_that_is_a_script(cache, tmp_path):
    """What it would do with the first process of --warm cannot be known."""
    shim, script = tmp_path / "python3", tmp_path / "script.py"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    shim.chmod(0o755)
    script.write_text("print('ran')")
    p = crun({**cache, "PYTHON_EXEC": str(shim)}, "--warm", script)
    assert p.returncode == 0 and p.stdout == "ran\n" and "set PYTHON_EXEC to the interpreter itself" in p.stderr


def test_the_variable(cache, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import json")
    for value, n in ("1", 1), ("0", 0), ("", 0):
        log = tmp_path / f"events{value}"
        assert crun({**cache, "CRUN_WARM": value}, f"--event-log={log}", script).returncode == 0
        assert len(events(log, "warm")) == n
    p = crun({**cache, "CRUN_WARM": "yes"}, script)
    assert p.returncode == 1 and "CRUN_WARM='yes' in the environment: it is 1 or 0" in p.stderr
