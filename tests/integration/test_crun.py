"""crun on one node, seen from outside: exit codes, signals, restarts, refusals, what its workers get."""

import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import zipfile

import pytest

import jobs
import launches
import nodes
import standalone_crowd

pytestmark = pytest.mark.sanitize


def script(folder, text, name="worker.sh", executable=True):
    path = folder / name
    path.write_text(text)
    if executable:
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def crun(*args, environment=None, timeout=120, **more):
    return jobs.run([jobs.crun(), *map(str, args)], timeout=timeout, env={**os.environ, **(environment or {})}, **more)


def said(p):
    """The report: lines of crun without the note on threads, and without what it prints when it stops the workers."""
    return [line for line in p.stderr.splitlines() if line.startswith("crun: ") and "OMP_NUM_THREADS" not in line
            and not jobs.is_stop_notice(line)]


# ---------------------------------------------------------------- good runs


def test_success_is_silent_and_leaves_nothing(tmp_path):
    p = crun("--standalone", "--no-python", "true", environment={"TMPDIR": str(tmp_path)})
    assert (p.returncode, p.stdout, p.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == []


def test_threads_note_is_one_line():
    p = crun("--standalone", "--nproc-per-node=2", "--no-python", "true")
    assert p.returncode == 0
    assert len(p.stderr.splitlines()) == 1 and "OMP_NUM_THREADS" in p.stderr
    assert crun("--standalone", "--nproc-per-node=2", "--no-python", "true", environment={"OMP_NUM_THREADS": "3"}).stderr == ""


def test_worker_gets_session_stdin_directory_and_six_descriptors(tmp_path):
    worker = script(tmp_path, "import os, sys\n"
                    "assert os.getsid(0) == os.getpgid(0) == os.getpid()\n"
                    "print(os.getcwd(), sys.stdin.read(), sorted(int(n) for n in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + n)),\n"
                    "      *(os.environ[f'CRUN_{name}_FD'] for name in ('NOTICE', 'STATE', 'BLOCKS')))\n", "worker.py")
    p = subprocess.run([jobs.crun(), "--standalone", worker], input="hello", capture_output=True, text=True, cwd=tmp_path,
                       env={**os.environ, "PYTHON_EXEC": sys.executable})
    assert p.stdout == f"{tmp_path} hello [0, 1, 2, 3, 4, 7] 3 4 7\n", p.stderr


def test_worker_starts_with_default_signals(tmp_path):
    p = crun("--standalone", "--no-python", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    assert [int(line.split()[1], 16) for line in p.stdout.splitlines()] == [0, 0]


def test_missing_stdio_is_replaced(tmp_path):
    worker = script(tmp_path, f"#!/bin/sh\nls -l /proc/self/fd > {tmp_path}/fds\n")
    subprocess.run(f"exec {jobs.crun()} --standalone {worker} <&- >&- 2>&-", shell=True, timeout=60, check=True)
    fds = (tmp_path / "fds").read_text()
    assert "0 -> /dev/null" in fds and "2 -> /dev/null" in fds


def test_program_kinds(tmp_path):
    python = {"PYTHON_EXEC": sys.executable}
    py = script(tmp_path, "#!/bin/false\nimport sys; print('python', sys.argv[1:])\n", "a.py", executable=False)
    sh = script(tmp_path, "#!/bin/sh\necho shell $0 $*\n", "b")
    bare = script(tmp_path, "print('bare')\n", "c", executable=False)
    shebang = script(tmp_path, "#!/usr/bin/env python3\nprint('no x bit')\n", "d", executable=False)
    says = "import sys; print(open('/proc/self/cmdline').read().split('\\0')[:3])\n"
    by_env = script(tmp_path, "#!/usr/bin/env python3\n" + says, "by-env")
    elsewhere = script(tmp_path, "#!/usr/bin/python-that-is-not-there\n" + says, "elsewhere")
    with_option = script(tmp_path, f"#!{sys.executable} -B\n" + says, "with-option")
    (tmp_path / "python").symlink_to(sys.executable)
    installed = script(tmp_path, f"#!{tmp_path}/python\n" + says, "installed")
    (tmp_path / "pack").mkdir()
    script(tmp_path / "pack", "print('module')\n", "__main__.py", executable=False)
    assert crun("--standalone", py, "x", environment=python).stdout == "python ['x']\n"
    assert crun("--standalone", sh, "x").stdout == f"shell {sh} x\n"
    assert crun("--standalone", "/bin/echo", "elf").stdout == "elf\n"
    assert crun("--standalone", bare, environment=python).stdout == "bare\n"
    assert crun("--standalone", shebang, environment=python).stdout == "no x bit\n"
    for path in (by_env, elsewhere):
        assert crun("--standalone", path, environment=python).stdout == f"{[sys.executable, '-u', path]}\n"
    assert crun("--standalone", with_option, environment=python).stdout == f"{[sys.executable, '-u', with_option]}\n"
    assert crun("--standalone", installed, environment={"VIRTUAL_ENV": "/nowhere"}).stdout == f"{[f'{tmp_path}/python', '-u', installed]}\n"
    assert crun("--standalone", installed, environment=python).stdout == f"{[sys.executable, '-u', installed]}\n"
    assert crun("--standalone", tmp_path / "pack", environment=python).stdout == "module\n"
    assert crun("--standalone", "-m", "pack", environment=python, cwd=tmp_path).stdout == "module\n"
    assert crun("--standalone", "--no-python", "echo", "$local_rank").stdout == "0\n"
    assert crun("--standalone", "--", "-m", "pack", environment=python, cwd=tmp_path).stdout == "module\n"
    assert crun("--standalone", "-", "x", environment=python, cwd=tmp_path).returncode == 0  # an empty script


RELOCATABLE = '"$(dirname -- "$(realpath -- "$0")")"/'

# What pip, uv, virtualenv and pex write in front of a script whose interpreter's path is long, has a blank or is relocatable.
HEADS = {
    "env with options": "#!/usr/bin/env -S python3 -u", "env with a variable": "#!/usr/bin/env -S A=1 python3", "env -S without a blank": "#!/usr/bin/env -Spython3",
    "options": "#!/opt/x/python3.11 -sE", "CRLF": "#!/usr/bin/env python3\r",
    "pip": "#!/bin/sh\n'\'\'exec' \"/a b/bin/python3\" \"$0\" \"$@\"\n' '\'\'", "pip, long path": f"#!/bin/sh\n'\'\'exec' /{'l' * 3000}/python \"$0\" \"$@\"\n' '\'\'",
    "uv": "#!/bin/sh\n'\'\'exec' '/a b/bin/python3' \"$0\" \"$@\"\n' '\'\'", "uv, relocatable": f"#!/bin/sh\n'\'\'exec' {RELOCATABLE}'python3' \"$0\" \"$@\"\n' '\'\'",
    "virtualenv": '#!/bin/sh\n"exec" "/a/bin/python" "$0" "$@"', "virtualenv, relocatable": '#!/bin/bash\n"exec" "`dirname $0`/python" "$0" "$@"',
}
OTHER_HEADS = {"ordinary": "#!/bin/sh\n", "exec of another program": "#!/bin/sh\n'exec' sh -c 'echo shell' #", "perl": "#!/usr/bin/env perl",
               "env of a program": "#!/usr/bin/env -S A=python3 sh"}


@pytest.mark.parametrize("head", HEADS)
def test_heads_of_python_scripts(tmp_path, head):
    """Python runs them with -u, executable or not, and PYTHON_EXEC chooses it."""
    text = HEADS[head] + "\nimport sys\nprint(sys.stdout.write_through, sys.argv[0], sys.executable)\n"
    for executable in (True, False):
        path = script(tmp_path, text, "tool", executable=executable)
        assert crun("--standalone", path, environment={"PYTHON_EXEC": sys.executable}).stdout == f"True {path} {sys.executable}\n"


@pytest.mark.parametrize("head", OTHER_HEADS)
def test_heads_of_other_scripts(tmp_path, head):
    path = script(tmp_path, OTHER_HEADS[head] + "\nprint\n", "tool", executable=False)
    jobs.assert_one_sentence(crun("--standalone", path), 1, "it is not executable")


def test_zip_behind_a_shell_script(tmp_path):
    """pex --sh-boot; a script with other bytes at its end is the shell's."""
    with zipfile.ZipFile(tmp_path / "zip", "w") as made:
        made.writestr("__main__.py", "import sys; print('main', sys.stdout.write_through)")
    path = tmp_path / "tool"
    path.write_bytes(b"#!/bin/sh\necho shell\nexit\n" + (tmp_path / "zip").read_bytes())
    assert crun("--standalone", path, environment={"PYTHON_EXEC": sys.executable}).stdout == "main True\n"


def fake_python(folder, says):
    """An environment whose Python prints its name."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").touch()
    for name in ("python", "python3"):
        script(folder / "bin", f"#!/bin/sh\necho {says}\n", name)
    return folder / "bin"


@pytest.mark.parametrize("folder", ["a b", "relocated"])
def test_script_tied_to_the_python_beside_it(tmp_path, folder):
    """Named by a relative path, or by a link elsewhere, as pipx installs them."""
    own = fake_python(tmp_path / folder, "own")
    head = HEADS["uv, relocatable"] if folder == "relocated" else HEADS["pip"].replace("/a b/bin", str(own))
    tool = script(own, head + "\n", "tool")
    (tmp_path / "link").symlink_to(tool)
    elsewhere = fake_python(tmp_path / "elsewhere", "elsewhere")
    where = {"PATH": f"{elsewhere}:{os.environ['PATH']}"}
    assert crun("--standalone", f"{folder}/bin/tool", environment=where, cwd=tmp_path).stdout == "own\n"
    assert crun("--standalone", "./link", environment=where, cwd=tmp_path).stdout == "own\n"


# (variables of the shell, folders of PATH in front of the others, how crun is called, the Python that runs, whether a line names it)
SHELLS = {
    "none active": ({}, [], "crun", "first", False),
    "active": ({"VIRTUAL_ENV": "venv"}, ["venv"], "crun", "venv", False),
    "conda over a venv": ({"VIRTUAL_ENV": "venv", "CONDA_PREFIX": "conda"}, ["conda", "venv"], "crun", "conda", True),
    "not on PATH": ({"VIRTUAL_ENV": "venv"}, [], "crun", "first", True),
    "without Python": ({"VIRTUAL_ENV": "empty"}, [], "crun", "first", True),
    "crun of the environment": ({"VIRTUAL_ENV": "tool"}, ["tool"], "tool/bin/crun", "tool", False),
    "crun by its path": ({}, [], "tool/bin/crun", "tool", False),
    "crun by its path, another active": ({"VIRTUAL_ENV": "venv"}, ["venv"], "tool/bin/crun", "tool", True),
    "crun by a link": ({}, [], "links/crun", "tool", False),
    "crun by a link, another active": ({"VIRTUAL_ENV": "venv"}, ["venv"], "links/crun", "venv", False),
    "crun by a link, conda active": ({"CONDA_PREFIX": "conda"}, ["conda"], "links/crun", "conda", False),
    "crun on PATH behind the active one": ({"VIRTUAL_ENV": "venv"}, ["venv", "tool"], "tool/bin/crun", "venv", False),
    "crun on PATH before the active one": ({"VIRTUAL_ENV": "venv"}, ["tool", "venv"], "tool/bin/crun", "tool", True),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_python_is_the_one_that_the_shell_takes(tmp_path, shell):
    """But for a crun that is installed in an environment."""
    variables, path, called, runs, is_named = SHELLS[shell]
    for name in ("first", "venv", "conda", "tool"):
        fake_python(tmp_path / name, name)
    (tmp_path / "links").mkdir()
    shutil.copy(jobs.crun(), tmp_path / "tool/bin/crun")
    (tmp_path / "links/crun").symlink_to(tmp_path / "tool/bin/crun")
    command = jobs.crun() if called == "crun" else tmp_path / called
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX")}
    environment |= {name: str(tmp_path / value) for name, value in variables.items()}
    environment["PATH"] = ":".join([*(f"{tmp_path}/{name}/bin" for name in [*path, "first"]), environment["PATH"]])
    p = jobs.run([command, "--standalone", "-m", "mod"], env=environment)
    assert (p.returncode, p.stdout) == (0, f"{runs}\n"), p.stderr
    assert [f"workers run {tmp_path}/{runs}/bin/python3" in line for line in p.stderr.splitlines()] == [True] * is_named, p.stderr


@pytest.mark.parametrize("args", [["list"], ["--root", "/run/crun", "list"], ["--systemd-cgroup", "delete", "--force", "id"], ["--log=x", "create", "id"]])
def test_call_of_the_oci_runtime(tmp_path, args):
    p = crun(*args, cwd=tmp_path)
    jobs.assert_one_sentence(p, 2, "not the OCI runtime", "containers.conf", "-Dshort_names=false")


def test_scripts_that_are_called_like_commands_of_the_oci_runtime(tmp_path):
    script(tmp_path, "#!/bin/sh\necho ran $1\n", "run")
    for args in (["run", "x"], ["./run", "x"], ["--standalone", "run", "x"]):
        assert crun(*args, cwd=tmp_path).stdout == "ran x\n"
    assert "not the OCI runtime" in crun("start", cwd=tmp_path).stderr
    assert crun("--no-python", "start", cwd=tmp_path).stderr == "crun: start: No such file or directory on PATH\n"


def opens(pid, path):
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # it has just ended, or begun


def test_script_in_a_fifo(tmp_path):
    """Python reads the script; crun takes none of its bytes, and stays reachable when no writer comes."""
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    os.write(writer, b"print('from a pipe')\n")
    command = [jobs.crun(), "--standalone", path]
    environment = {**os.environ, "PYTHON_EXEC": sys.executable}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment) as p:
        jobs.wait_for(lambda: any(opens(pid, path) for pid in jobs.descendants(p.pid)))
        os.close(writer)
        assert p.communicate(timeout=60)[0] == "from a pipe\n"
        assert p.returncode == 0
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as p:
        jobs.wait_for(lambda: jobs.workers(p.pid))
        p.send_signal(signal.SIGTERM)
        assert "stopped by SIGTERM" in p.communicate(timeout=60)[1]
        assert p.returncode == 1
    os.chmod(path, 0o755)
    jobs.assert_one_sentence(crun("--standalone", "--no-python", path), 1, "could not be started", "Permission denied")


def test_run_path(tmp_path):
    failing = script(tmp_path, "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:])\n    raise ValueError('boom')\n", "a.py")
    p = crun("--standalone", "--run-path", failing, "x", environment={"PYTHON_EXEC": sys.executable})
    assert p.returncode == 1 and p.stdout == "['x']\n"
    assert "ValueError: boom" in p.stderr.split("traceback : ")[1]


# ---------------------------------------------------------------- failures and restarts


def test_failure_report(tmp_path):
    worker = script(tmp_path, '#!/bin/sh\n[ $RANK = 1 ] && exit 7\nsleep 60\n')
    p = crun("--standalone", "--nproc-per-node=3", worker)
    assert p.returncode == 1
    lines = said(p)
    assert "rank 1 (local rank 1" in lines[0] and "failed first" in lines[0] and lines[0].endswith("exit code 7")
    assert "ended after crun had asked them to stop: rank" in lines[1]
    assert f"{worker} FAILED" in p.stderr
    assert "Root Cause (first observed failure):\n[0]:" in p.stderr
    assert "exitcode  : 7 (pid:" in p.stderr
    assert p.stderr.count("exitcode  : -15 (pid:") == 2


@pytest.mark.parametrize("ending, words, code", [
    ("exit 3", "exit code 3", 3),
    ("kill -SEGV $PID", "killed by signal 11 (SIGSEGV)", 139),
    ("kill -KILL $PID", "killed by signal 9 (SIGKILL)", 137),
])
def test_exit_code_of_the_worker(tmp_path, ending, words, code):
    worker = script(tmp_path, f"#!/bin/sh\nPID=$$\n{ending}\nsleep 60\n")
    p = crun("--standalone", worker)
    assert p.returncode == 1 and words in said(p)[0]
    assert crun("--standalone", "--exit-code=worker", worker).returncode == code


def watched(pid):
    """How many descriptors the process watches by epoll."""
    return sum(info.read_text().count("tfd:") for info in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir())


def test_who_died_first_is_told_by_the_kernel(tmp_path):
    """The others end only when they see that rank 3 is dead; the guardian, stopped, reads all ends at once."""
    worker = script(tmp_path, '#!/bin/sh\n'
                    'until [ -e go ]; do sleep 0.005; done\n'
                    'if [ $RANK = 3 ]; then echo $$ > pid.new; mv pid.new pid; exit 5; fi\n'
                    'until [ -e pid ]; do sleep 0.005; done\n'
                    'until grep -q "^State:.Z" /proc/$(cat pid)/status; do sleep 0.005; done\n'
                    'touch ended.$RANK\nexit 5\n')
    p = launches.start(["--standalone", "--nproc-per-node=4", worker], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: len(jobs.workers(p.pid)) == 4)
    guardian = launches.guardian(p.pid)
    jobs.wait_for(lambda: watched(guardian) == 4 + 2)  # the workers, the link to crun, SIGCHLD; a job without --lease has no timer
    os.kill(guardian, signal.SIGSTOP)
    (tmp_path / "go").touch()
    jobs.wait_for(lambda: all((tmp_path / f"ended.{rank}").exists() for rank in range(3)))
    os.kill(guardian, signal.SIGCONT)
    _, err = p.communicate(timeout=60)
    report = [line for line in err.splitlines() if not jobs.is_stop_notice(line)]
    assert "rank 3 (local rank 3" in report[1], err


def test_restarts_until_it_works(tmp_path):
    worker = script(tmp_path, '#!/bin/sh\n'
                    'echo $RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $MASTER_PORT\n'
                    '[ $TORCHELASTIC_RESTART_COUNT = 2 ] || [ $RANK = 1 ] || exit 1\n'
                    '[ $TORCHELASTIC_RESTART_COUNT = 2 ] || sleep 60\n')
    p = crun("--standalone", "--nproc-per-node=2", "--max-restarts=3", worker)
    assert p.returncode == 0, p.stderr
    rows = [line.split() for line in p.stdout.splitlines()]
    assert sorted(row[:3] for row in rows if row[0] == "0") == [["0", str(n), "3"] for n in range(3)]
    assert "2/3 attempts left; will restart worker group" in p.stderr
    assert "FAILED" not in p.stderr
    generations = {row[1]: row[3] for row in rows}
    assert len(set(generations.values())) == 3  # a store of its own for each generation


def test_restart_budget(tmp_path):
    worker = script(tmp_path, f'#!/bin/sh\necho x >> {tmp_path}/runs\nexit 1\n')
    p = crun("--standalone", "--max-restarts=3", worker)
    assert p.returncode == 1 and len((tmp_path / "runs").read_text().split()) == 4
    assert "all 3 restarts are used" in p.stderr and p.stderr.count("FAILED") == 1


def test_next_generation_starts_on_an_empty_floor(tmp_path):
    """A relative of a crashed worker that ignores SIGTERM is gone before the next generation starts."""
    worker = script(tmp_path, f'#!/bin/sh\nif [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then\n'
                    f'    ps -eo args | grep -c "[s]leep 1234.{os.getpid()}"; exit 0\nfi\n'
                    f"(trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1234.{os.getpid()}; :' &)\nsleep 0.1\nexit 1\n")
    p = crun("--standalone", "--max-restarts=1", worker)
    assert p.stdout == "0\n" and p.returncode == 0


def test_relatives_left_after_success_get_a_second(tmp_path):
    begin = time.monotonic()
    p = launches.start(["--standalone", "--shutdown-timeout=300", "--no-python", launches.family(), "exit", "0"])
    assert p.wait(timeout=60) == 0
    assert time.monotonic() - begin > 0.9
    assert launches.living(p.tag) == {}


# ---------------------------------------------------------------- error files


RECORD = """
import os, sys
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("boom")
    import time; time.sleep(60)

main()
"""


def test_recorded_error_is_shown_and_kept(tmp_path):
    worker = script(tmp_path, RECORD, "train.py")
    logs, mine = tmp_path / "tmp", tmp_path / "mine.json"
    logs.mkdir()
    p = crun("--standalone", "--nproc-per-node=2", worker,
             environment={"PYTHON_EXEC": sys.executable, "TMPDIR": str(logs), "TORCHELASTIC_ERROR_FILE": str(mine)})
    assert p.returncode == 1
    root = p.stderr.split("Root Cause")[1]
    assert "ValueError: boom" in root and "error.json" in root and "rank      : 1" in root
    kept = [line for line in said(p) if "kept in" in line][0].split()[-1]
    assert pathlib.Path(kept).is_relative_to(logs)
    assert (pathlib.Path(kept) / "attempt_0.1.error.json").exists()
    assert '"errorCode":1' in mine.read_text() and "boom" in mine.read_text()


def test_log_dir(tmp_path):
    p = crun("--standalone", f"--log-dir={tmp_path}/a/b", "--no-python", "sh", "-c", "echo $TORCHELASTIC_ERROR_FILE")
    path = pathlib.Path(p.stdout.strip())
    assert path.parent.is_dir() and path.name == "error.json" and path.parent.name == "0"
    assert path.parents[1].name == "attempt_0" and path.parents[3] == tmp_path / "a" / "b"
    p = crun("--standalone", "--log-dir=/dev/null", "--no-python", "sh", "-c", "echo x$TORCHELASTIC_ERROR_FILE")
    assert p.stdout == "x\n"
    (tmp_path / "file").touch()
    p = crun("--standalone", f"--log-dir={tmp_path}/file", "--no-python", "true")
    assert p.returncode == 1 and len(said(p)) == 1


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("args, code, words", [
    (["nosuch"], 1, "No such file or directory"),
    (["./nosuch"], 1, "No such file or directory"),
    (["--no-python", "nosuch"], 1, "on PATH"),
    (["--no-python", "/etc/passwd"], 1, "not executable"),
    (["--nproc-per-node=gpu", "/bin/true"], 1, "GPU"),
    (["--nproc-per-node=0", "/bin/true"], 1, "between 1 and"),
    (["--nnodes=2", "/bin/true"], 1, "--standalone is for one node"),
    (["--max-restarts=x", "/bin/true"], 2, "invalid int value"),
    (["--nope", "/bin/true"], 2, "unrecognized arguments: --nope"),
    ([], 2, "the following arguments are required"),
])
def test_refusals_are_one_sentence(args, code, words):
    if "gpu" in str(args) and os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU")
    p = crun("--standalone", *args)
    assert p.returncode == code
    assert len(said(p)) == 1 and words in said(p)[0], p.stderr


def test_program_without_x_bit(tmp_path):
    for text in ("#!/bin/sh\n", "\177ELF"):
        p = crun("--standalone", script(tmp_path, text, executable=False))
        assert p.returncode == 1 and len(said(p)) == 1 and "not executable" in said(p)[0]


def test_exec_failure_is_not_restarted(tmp_path):
    p = crun("--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python", script(tmp_path, "\177ELFnonsense"))
    assert p.returncode == 1
    assert len(said(p)) == 1 and "Exec format error" in said(p)[0]
    p = crun("--standalone", script(tmp_path, "#!/no/such/interpreter\n"))
    assert p.returncode == 1 and "No such file or directory" in said(p)[0]
    assert "names /no/such/interpreter" in said(p)[0]


def test_run_id_with_slashes(tmp_path):
    p = crun("--rdzv-endpoint=localhost:0", "--rdzv-backend=c10d", "--rdzv-id=a/b/../c", f"--log-dir={tmp_path}", "-r3", "--no-python", "true")
    assert p.returncode == 0 and [name[:9] for name in os.listdir(tmp_path)] == ["a_b_.._c_"], p.stderr


def test_too_few_descriptors_to_begin(tmp_path):
    p = jobs.run(["sh", "-c", f"ulimit -n 6; exec {jobs.crun()} --standalone --no-python true"], timeout=60)
    assert p.returncode == 1 and len(said(p)) == 1 and "ulimit -n" in said(p)[0]


CONNECTS = ("import os, resource, socket, sys, time\n"
            "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64\n"
            "where = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
            "for _ in range(6):\n"
            "    s = socket.create_connection(where)\n"
            "    s.sendall(b'\\x00\\xce\\xf7\\x85\\x3c\\x0d1234')\n"
            "    s.settimeout(60)\n"
            "    assert s.recv(4) == b'1234'\n"
            "    globals().setdefault('kept', []).append(s)\n"
            "open(f\"{sys.argv[1]}/{os.environ['RANK']}\", 'w').close()\n"
            "while len(os.listdir(sys.argv[1])) < int(os.environ['WORLD_SIZE']):  # nobody leaves while others connect\n"
            "    time.sleep(0.01)\n")


def test_store_has_more_connections_than_the_soft_limit(tmp_path):
    """crun raises its own limit to the hard one; a worker keeps the soft one. At the hard limit it says so."""
    worker = script(tmp_path, CONNECTS, "worker.py")
    for name in "ab":
        (tmp_path / name).mkdir()
    job = f"{jobs.crun()} --standalone --nproc-per-node=12 {worker} {tmp_path}"
    python = {**os.environ, "PYTHON_EXEC": sys.executable}
    p = jobs.run(["sh", "-c", f"ulimit -Sn 64; exec {job}/a"], env=python)
    assert p.returncode == 0, p.stderr
    p = subprocess.Popen(["sh", "-c", f"ulimit -n 64; exec {job}/b"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         env=python)
    lines = []
    for line in p.stderr:
        lines.append(line)
        if "worker store" in line and "ulimit -n" in line:
            break
    else:
        raise AssertionError(lines)
    p.terminate()
    p.communicate(timeout=60)


def test_fixed_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        p = crun(f"--master-port={other.getsockname()[1]}", "--no-python", "true")
        assert p.returncode == 1 and len(said(p)) == 1 and "another program has it" in said(p)[0]


def test_fixed_port_survives_a_restart(tmp_path):
    port = nodes.free_port()
    worker = script(tmp_path, "import os, socket, sys\n"
                    "s = socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))\n"
                    "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '2')\n", "worker.py")
    p = crun("--master-addr=localhost", f"--master-port={port}", "--max-restarts=2", worker,
             environment={"PYTHON_EXEC": sys.executable})
    assert p.returncode == 0, p.stderr


# ---------------------------------------------------------------- store and notices


def listening_addresses(pid):
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1])
    return found


def test_standalone_listens_on_loopback_only_and_only_in_crun(tmp_path):
    p = launches.start(["--standalone", "--nproc-per-node=2", "--no-python", "sleep", "60"])
    workers = jobs.wait_for(lambda: (w := jobs.workers(p.pid)) and len(w) == 2 and w)
    addresses = listening_addresses(p.pid)
    assert len(addresses) == 1 and addresses[0].startswith("0100007F:")
    assert int(addresses[0].split(":")[1], 16) == int(jobs.environment(workers[0])["MASTER_PORT"])
    assert listening_addresses(launches.guardian(p.pid)) == []
    p.terminate()
    assert p.wait(timeout=60) == 1


def test_notices(tmp_path):
    """PEER_FAILED reaches the survivors before the stop signal, STOP before the signal that is passed on."""
    worker = script(tmp_path, "import os, signal, socket, struct, sys, time\n"
                    "rank, fd = os.environ['RANK'], int(os.environ['CRUN_NOTICE_FD'])\n"
                    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})\n"
                    "open(sys.argv[1] + rank, 'w').close()\n"
                    "if rank == '1' and sys.argv[2] == 'crash':\n"
                    "    while not os.path.exists(sys.argv[1] + '0'): time.sleep(0.001)\n"
                    "    os._exit(9)\n"
                    "record = socket.socket(fileno=fd).recv(100)\n"
                    "got = signal.sigwait({signal.SIGTERM, signal.SIGINT})\n"
                    "print(rank, *struct.unpack('<IIIii', record), got)\n", "worker.py")
    python = {"PYTHON_EXEC": sys.executable}
    p = crun("--standalone", "--nproc-per-node=2", worker, tmp_path / "a", "crash", environment=python)
    assert p.stdout == f"0 20 1 0 1 9 {signal.SIGTERM}\n", p.stderr
    p = launches.start(["--standalone", worker, tmp_path / "b", "wait"], python, stdout=subprocess.PIPE, text=True)
    jobs.wait_for((tmp_path / "b0").exists)
    p.send_signal(signal.SIGINT)
    assert p.communicate(timeout=60)[0] == f"0 20 2 0 -1 {signal.SIGINT} {signal.SIGINT}\n"


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signal_is_passed_on(tmp_path, sig):
    worker = script(tmp_path, f"#!/bin/sh\ntrap 'echo got {sig.value}; exit 0' {sig.value}\ntouch {tmp_path}/up.$RANK\n"
                    "while :; do sleep 0.01; done\n")
    p = launches.start(["--standalone", "--nproc-per-node=2", worker], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    jobs.wait_for(lambda: all((tmp_path / f"up.{rank}").exists() for rank in range(2)))
    p.send_signal(sig)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 1 and out == f"got {sig.value}\n" * 2
    assert f"crun: stopped by {sig.name} from process {os.getpid()}" in err and "FAILED" not in err
    assert launches.living(p.tag) == {}


def wait_until_told(log):
    """Until crun has taken notice of a signal, as its event log says."""
    jobs.wait_for(lambda: '"event":"stop"' in log.read_text())


def deaf_job(tmp_path, *args):
    worker = script(tmp_path, f"#!/bin/sh\ntrap '' TERM\ntouch {tmp_path}/up\nwhile :; do sleep 0.1; done\n")
    p = launches.start(["--standalone", *args, worker], stderr=subprocess.PIPE, text=True)
    jobs.wait_for((tmp_path / "up").exists)
    return p


def test_shutdown_timeout(tmp_path):
    p = deaf_job(tmp_path, "--shutdown-timeout=1")
    begin = time.monotonic()
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert 0.9 < time.monotonic() - begin < 25  # it is 30 s where nothing is said
    assert p.returncode == 1 and "had ended in time" in err and launches.living(p.tag) == {}


def test_shutdown_timeout_holds_after_a_crash(tmp_path):
    worker = script(tmp_path, f"#!/bin/sh\nif [ $RANK = 0 ]; then until [ -e {tmp_path}/deaf ]; do sleep 0.01; done; exit 1; fi\n"
                    f"trap '' TERM\ntouch {tmp_path}/deaf\nwhile :; do sleep 0.1; done\n")
    begin = time.monotonic()
    p = crun("--standalone", "--nproc-per-node=2", worker, environment={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"})
    assert p.returncode == 1 and 0.9 < time.monotonic() - begin < 25


def test_second_signal_hastens(tmp_path):
    p = deaf_job(tmp_path, "--shutdown-timeout=300", f"--event-log={tmp_path}/events")
    p.terminate()
    wait_until_told(tmp_path / "events")
    time.sleep(1.1)  # signals within a second are one request
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and launches.living(p.tag) == {}
    assert "a second signal came; what was left has been killed" in err and "in time" not in err


def test_nohup(tmp_path):
    worker = script(tmp_path, f"#!/bin/sh\ntouch {tmp_path}/up\nuntil [ -e {tmp_path}/end ]; do sleep 0.01; done\n")
    p = subprocess.Popen(["nohup", jobs.crun(), "--standalone", worker], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    jobs.wait_for((tmp_path / "up").exists)
    p.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    assert p.poll() is None
    (tmp_path / "end").touch()
    assert p.wait(timeout=60) == 0


def test_signals_to_handle(tmp_path):
    worker = script(tmp_path, f"#!/bin/sh\ntrap 'exit 0' USR1\ntouch {tmp_path}/up\nwhile :; do sleep 0.01; done\n")
    p = launches.start(["--standalone", "--signals-to-handle=SIGUSR1", worker])
    jobs.wait_for((tmp_path / "up").exists)
    p.send_signal(signal.SIGUSR1)
    assert p.wait(timeout=60) == 1
    # One that is not handled ends crun as it ends any process, and the workers go with it.
    (tmp_path / "up").unlink()
    p = launches.start(["--standalone", "--signals-to-handle=SIGUSR1", worker])
    jobs.wait_for((tmp_path / "up").exists)
    p.terminate()
    assert p.wait(timeout=60) == -signal.SIGTERM
    assert launches.wait_until_gone(p.tag, 30) == {}


def test_terminating_everything_at_once(tmp_path):
    """A batch system signals every process of a job: the guardian must stay and finish its work."""
    p = launches.start(["--standalone", "--nproc-per-node=2", "--no-python", launches.family()], stderr=subprocess.DEVNULL)
    jobs.wait_for(lambda: len(launches.living(p.tag)) >= 8)
    for pid in launches.living(p.tag):
        jobs.kill(pid, signal.SIGTERM)
    assert p.wait(timeout=60) == 1
    assert launches.living(p.tag) == {}


# ---------------------------------------------------------------- nothing is left, nobody else is hit


def rounds(name, default):
    return int(os.environ.get(name, default))


@pytest.mark.parametrize("program, args", [
    ("orphan_rounds.py", ["--patience=30", "--rounds", rounds("CRUN_TEST_ORPHAN_ROUNDS", 60)]),
    ("sigterm_rounds.py", ["--rounds", rounds("CRUN_TEST_SIGTERM_ROUNDS", 40)]),
])
def test_rounds(program, args):
    p = jobs.run_soak(program, *args)
    assert p.returncode == 0, p.stdout + p.stderr
    print(p.stdout)


def test_many_launches_at_once():
    failed, ports = standalone_crowd.run(rounds("CRUN_TEST_LAUNCHES", 30))
    assert failed == []
    assert all(n == 1 for n in ports.values()), ports


def test_missing_proc_is_reported():
    """Without it, and without a cgroup, nothing finds what workers leave behind; the job itself runs."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root and a mount namespace")
    if jobs.is_sanitized():
        pytest.skip("a sanitizer reads its options from /proc")
    p = jobs.run(["unshare", "-m", "sh", "-c", f"umount -l /sys /proc; exec {jobs.crun()} --standalone --no-python true"])
    assert p.returncode == 0 and "there is no /proc here" in p.stderr, p.stderr


def test_killed_guardian_is_a_failure_like_any_other(tmp_path):
    worker = script(tmp_path, f"#!/bin/sh\n[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0\ntouch {tmp_path}/up\nsleep 60\n")
    p = launches.start(["--standalone", "--max-restarts=1", worker], stderr=subprocess.PIPE, text=True)
    jobs.wait_for((tmp_path / "up").exists)
    os.kill(launches.guardian(p.pid), signal.SIGKILL)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and "the guardian" in err and "will restart" in err


@pytest.mark.parametrize("then_killed", [True, False])
def test_guardian_that_does_not_read_its_orders(tmp_path, then_killed):
    """A traced guardian sleeps through SIGCONT. Killed with an order unread, its end must be noticed at once (the
    socket tells it as an error, not as an end); left asleep, crun kills it and does its work."""
    worker = script(tmp_path, f"#!/bin/sh\ntrap '' TERM\n(setsid sleep 300 &)\ntouch {tmp_path}/up\nwhile :; do sleep 0.1; done\n")
    p = launches.start(["--standalone", "--nproc-per-node=2", f"--shutdown-timeout={300 if then_killed else 1}",
                        f"--event-log={tmp_path}/events", worker], stderr=subprocess.PIPE, text=True)
    jobs.wait_for((tmp_path / "up").exists)
    guardian = launches.guardian(p.pid)
    launches.trace(guardian)
    p.terminate()
    if then_killed:
        wait_until_told(tmp_path / "events")
        time.sleep(0.1)  # the order is on its way by now; if not, this shows less
        os.kill(guardian, signal.SIGKILL)
    while not os.WIFSIGNALED(os.waitpid(guardian, 0)[1]):  # its tracer hears of its end first
        pass
    _, err = p.communicate(timeout=60)
    assert p.returncode == 1 and launches.wait_until_gone(p.tag, 30) == {}
    assert ("crun kills it" in err) == (not then_killed) and "do not end on SIGKILL" not in err


@pytest.mark.parametrize("stopped, late_ms", [(False, 0), (True, 0), (True, 500)], ids=["waits", "stopped", "stopped-late"])
def test_worker_whose_tracer_does_not_wait(tmp_path, stopped, late_ms):
    """A worker that has ended stays a zombie until its tracer waits for it; the guardian can reap it only then. Until then it
    sleeps, whether it waits for that worker or has to kill every process, and what the worker ended by is reported, also where
    the guardian is so late that it reads the order to stop before it looks for that end."""
    late = jobs.preload("late_guardian", LATE_GUARDIAN_MS=late_ms) if late_ms else None
    worker = script(tmp_path, "#!/bin/bash\ntrap '' TERM USR1\n[ $RANK = 1 ] || exec sleep 300\n"
                    f"echo $$ > {tmp_path}/pid\n"
                    f"read line < {tmp_path}/end  # it has no child: SIGCHLD would stop it for its tracer\nexit 7\n")
    os.mkfifo(tmp_path / "end")
    p = launches.start(["--standalone", "--nproc-per-node=2", "--shutdown-timeout=0", f"--event-log={tmp_path}/events",
                        worker], late, stderr=subprocess.PIPE, text=True)
    traced = int(jobs.wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n") and
                               (tmp_path / "pid").read_text()))
    if late_ms:  # an order that is read at once; the kernel names its descriptor before that of the worker then
        time.sleep(2.5 * late_ms / 1000)
        p.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    launches.seize(traced)
    (tmp_path / "end").write_text("now\n")
    jobs.wait_for(lambda: launches.state(traced)[1] == "Z")
    if stopped:
        p.terminate()
        jobs.wait_for(lambda: "sleep" not in launches.living(p.tag).values())  # the other worker
    if not late_ms:  # crun gives the guardian 5 s to end everything, which a late one may need
        guardian = launches.guardian(p.pid)
        before = launches.cpu_seconds(guardian), launches.cpu_seconds(p.pid)
        time.sleep(1.5)
        assert launches.cpu_seconds(guardian) - before[0] < 0.3 and launches.cpu_seconds(p.pid) - before[1] < 0.3
    assert p.poll() is None
    os.waitpid(traced, 0)
    _, err = p.communicate(timeout=60)
    exits = [e for e in jobs.whole_lines(tmp_path / "events") if e["event"] == "exit" and e["rank"] == 1]
    assert p.returncode == 1 and launches.wait_until_gone(p.tag, 30) == {}
    assert [(e.get("exit_code"), e["stopped_by_crun"]) for e in exits] == [(7, False)], (exits, err)
    assert stopped or "rank 1" in err and "exit code 7" in err, err


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_guardian(end):
    p = launches.start(["--standalone", "--nproc-per-node=2", "--no-python", launches.family()], stderr=subprocess.DEVNULL)
    jobs.wait_for(lambda: len(launches.living(p.tag)) >= 8)
    os.kill(launches.guardian(p.pid), signal.SIGSTOP)
    p.send_signal(end)
    assert p.wait(timeout=60) == (1 if end == signal.SIGTERM else -end)
    assert launches.wait_until_gone(p.tag, 30) == {}


def test_children_crun_was_born_with_are_not_touched(tmp_path):
    """`helper & exec crun ...`: the shell's child becomes crun's, but is not part of the job."""
    worker = script(tmp_path, f"#!/bin/sh\ntouch {tmp_path}/up\nsleep 60\n")
    p = subprocess.Popen(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/helper; exec {jobs.crun()} --standalone {worker}"],
                         stderr=subprocess.DEVNULL)
    jobs.wait_for((tmp_path / "up").exists)
    helper = int((tmp_path / "helper").read_text())
    guardian = next(pid for pid in jobs.children(p.pid) if pid != helper)
    os.kill(guardian, signal.SIGKILL)
    assert p.wait(timeout=60) == 1
    assert launches.state(helper)[1] in "SR"
    os.kill(helper, signal.SIGKILL)


unshare_works = subprocess.run(["unshare", "-fp", "--mount-proc", "true"], stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not unshare_works, reason="no permission for a pid namespace")
def test_no_zombies_as_process_1(tmp_path):
    """A container's first process: whatever loses its parent inside is waited for."""
    worker = script(tmp_path, "import os, sys, time\n"
                    "for i in range(int(sys.argv[1])):\n"
                    "    pid = os.fork()\n"
                    "    if pid == 0:\n"
                    "        if os.fork() == 0: os._exit(0)\n"
                    "        os._exit(0)\n"
                    "    os.waitpid(pid, 0)\n"
                    "deadline = time.monotonic() + 60\n"
                    "while True:\n"
                    "    states = []\n"
                    "    for p in filter(str.isdigit, os.listdir('/proc')):\n"
                    "        try: stat = open(f'/proc/{p}/stat').read()\n"
                    "        except OSError: continue  # it has been waited for meanwhile\n"
                    "        if '(job-keeper)' not in stat: states.append(stat.rsplit(')', 1)[1].split()[0])\n"
                    "    if len(states) == 3 or time.monotonic() > deadline: break\n"
                    "    time.sleep(0.01)\n"
                    "print(states.count('Z'), len(states))\n", "worker.py")
    p = jobs.run(["unshare", "-fp", "--mount-proc", jobs.crun(), "--standalone", worker, str(rounds("CRUN_TEST_FORKS", 500))],
                 env={**os.environ, "PYTHON_EXEC": sys.executable})
    assert p.stdout == "0 3\n", p.stderr  # crun, its guardian, the worker


@pytest.mark.parametrize("mode", ["spawns", "reuse"])
def test_many_generations(mode):
    """The short form of the soak tests spawns and pid-reuse."""
    p = jobs.run_soak("spawn_rounds.py", mode, "--workers=8", "--restarts=9")
    if "unshare failed" in p.stderr or "Read-only file system" in p.stderr:
        pytest.skip("no process namespace with a limit of its own: " + p.stderr.strip()[-200:])
    assert p.returncode == 0, p.stdout + p.stderr
