"""crun --hosts with an ssh that runs each command here, in a home of the host's own: life, signals, losses, output, input."""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import jobs
from crund import Crund

# Hosts by name: "bad*" refuses the connection, "mute*" never answers, "noisy*" prints before the command does.
SSH = """\
#!/bin/sh
for word; do case $word in
    bad*) echo "ssh: connect to host $word port 22: Connection refused" >&2; exit 255;;
    *denied*) echo "$word: Permission denied (publickey)." >&2; exit 255;;
    mute*) exec sleep 600;;
    noisy*) echo "Welcome to this host!"; echo "CRUN- is not a greeting"; printf "no newline"; break;;
esac; done
exec {fake} "$@"
"""
HELLO = 'echo "rank $RANK of $WORLD_SIZE"; echo "err $RANK" >&2'
HOLD = 'echo "up $RANK"; exec sleep 600'
STUBBORN = 'trap "" INT TERM; echo "up $RANK"; while :; do sleep 0.1; done'
POLITE = 'trap "echo asked $RANK; exit 0" TERM INT; echo "up $RANK"; while :; do sleep 0.1; done'


def shell(script):
    return ["--no-python", "sh", "-c", script]


class Front:
    """A crun --hosts, and the processes that belong to its job."""

    def __init__(self, folder, *args, program=None, env=None, **more):
        self.folder, self.homes = folder, str(folder / "homes")
        path = f"{folder}/bin{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [program or jobs.crun(), *args], text=True, cwd=folder,
            env={**os.environ, "PATH": path, "FAKE_SSH_HOMES": self.homes, "PET_TIMESTAMPS": "no",
                 "FAKE_SSH_PATH": os.environ["PATH"], **(env or {})},
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})

    def wait(self, timeout=60):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def await_lines(self, n, start="up "):
        """The next n lines of standard output, which the ranks print."""
        lines = [self.process.stdout.readline() for _ in range(n)]
        assert all(line.startswith(start) for line in lines), lines
        return lines

    def processes(self, word=""):
        """Living processes below a fake login, by a word of their command line."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    is_ours = f"HOME={self.homes}/".encode() in f.read()
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    command = f.read()
            except OSError:
                continue
            if is_ours and word.encode() in command:
                found.append(int(pid))
        return found

    def rest(self, timeout=60):
        """Waits until no process is left; those that are."""
        end = time.monotonic() + timeout
        while self.processes() and time.monotonic() < end:
            time.sleep(0.1)
        return self.processes()


@pytest.fixture
def start(tmp_path):
    """Starts fronts; afterwards none of their processes is left."""
    fake = jobs.build_folder() / "tests/fakes/fake_ssh"
    for name in "bin", "homes":
        (tmp_path / name).mkdir()
    ssh = tmp_path / "bin/ssh"
    ssh.write_text(SSH.replace("{fake}", str(fake)))
    ssh.chmod(0o755)
    fronts = []

    def begin(*args, **more):
        fronts.append(Front(tmp_path, *args, **more))
        return fronts[-1]

    yield begin
    for front in fronts:
        if front.process.poll() is None:
            front.process.kill()
            front.process.wait()
        assert front.rest() == []


def own_lines(err):
    """Lines of crun, but for those that any job may have."""
    return [line for line in err.splitlines() if line.startswith("crun: ") and "OMP_NUM_THREADS" not in line
            and "is not a TCPStore client" not in line]


# ---- a job

def test_three_hosts(start):
    code, out, err = start("--hosts=a,b,noisy", "--nproc-per-node=2", *shell(HELLO)).wait()
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"rank {i} of 6" for i in range(6)]
    assert sorted(line for line in err.splitlines() if line.startswith("err")) == [f"err {i}" for i in range(6)]
    assert own_lines(err) == []


def test_many_hosts_start_in_parts(start):
    code, out, err = start("--hosts=n[1-40]", "--nproc-per-node=1", *shell("echo $RANK")).wait(120)
    assert code == 0, err
    assert sorted(map(int, out.split())) == list(range(40))


@pytest.mark.parametrize("option, prefix", [
    ("--role=r", "[r 1@b]: "), ("--line-prefix=torchrun", "[default0]:"), ("--log-line-prefix-template=<${rank}>", "<1>")])
def test_prefixes_name_hosts(start, option, prefix):
    code, out, err = start("--hosts=a,b", "-t", "1", option, *shell("echo $RANK")).wait()
    assert code == 0 and f"{prefix}1" in out.splitlines(), (out, err)


def test_a_copy_travels(start, tmp_path):
    """The front's program has no name any more, so hosts cannot find it: each gets a copy, and keeps it."""
    program = tmp_path / "crun"
    shutil.copy(jobs.crun(), program)
    hold = start("--hosts=a", "--nproc-per-node=1", *shell("cat /proc/sys/kernel/ostype; umask; cat"), program=str(program),
                 stdin=subprocess.PIPE)
    program.unlink()
    code, out, err = hold.wait()
    mask = os.umask(0o22)
    os.umask(mask)
    assert code == 0 and out == f"Linux\n{mask:04o}\n", err


def test_an_installed_build_travels(start, tmp_path):
    """In place of the front's own program, which may need libraries that hosts lack."""
    program, build = tmp_path / "opt/bin/crun", tmp_path / f"opt/lib/crun/portable/crun-{os.uname().machine}"
    for path in program, build:
        path.parent.mkdir(parents=True)
        shutil.copy(jobs.crun(), path)
    with open(build, "ab") as f:
        f.write(b"portable")
    hold = start("--hosts=a", *shell("cat; echo $0"), program=str(program), stdin=subprocess.PIPE)
    program.unlink()
    code, _, err = hold.wait()
    copy, = (tmp_path / "homes/a/.cache/crun/bin").iterdir()
    assert code == 0 and copy.read_bytes() == build.read_bytes(), err


# ---- failure

def test_a_failure_is_reported_once(start):
    code, _, err = start("--hosts=a,b,c", "--nproc-per-node=2",
                         *shell('[ $RANK = 3 ] && exit 7; exec sleep 600')).wait()
    assert code == 1
    assert err.count("sh FAILED") == 1 and err.count("Root Cause") == 1, err
    assert err.count("; stopping the workers, up to 30 s") == 1, err
    assert len([line for line in own_lines(err) if "the job has failed on all nodes: rank 3 " in line]) == 1, err


def test_a_failure_counts_beside_a_spare(start):
    """The spare fails with the job, though it had no worker."""
    assert start("--hosts=a,b,c", "--nnodes=1:2", "--nproc-per-node=1", *shell("sleep 1; exit 7")).wait()[0] == 1


def test_a_job_goes_on_without_a_failed_host(start, tmp_path):
    """The agent of a host ends with an error, and the others complete the job."""
    script = 'echo "up $RANK"; until [ -e go ]; do sleep 0.1; done'
    front = start("--hosts=a,b", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=1", "--chdir", str(tmp_path),
                  *shell(script))
    front.await_lines(2)
    agent = next(pid for pid in front.processes("--node-rank=1"))
    os.kill(agent, signal.SIGKILL)
    front.await_lines(1)
    (tmp_path / "go").touch()
    code, _, err = front.wait()
    assert code == 0, err


@pytest.mark.parametrize("options, expected", [(["-r", "3"], True), (["-r", "1"], False), (["-t", "3"], False),
                                               (["-t", "2", "--local-ranks-filter=1"], True)])
def test_the_report_has_the_last_lines_of_a_hidden_stderr(start, tmp_path, options, expected):
    script = '[ $RANK = 1 ] || exec sleep 60; for i in 1 2 3 4 5; do echo "line $i" >&2; done; exit 3'
    code, out, err = start("--hosts=a,b", *options, f"--log-dir={tmp_path}/logs", *shell(script)).wait()
    lines = err.splitlines()
    [first] = [i for i, line in enumerate(lines) if "failed first" in line]
    assert code == 1 and (lines[first + 1:first + 5] == [f"crun:   | line {i}" for i in range(2, 6)]) == expected, err
    assert ("  | " in err) == expected, err


def test_the_cause_of_a_restart_stands_above_the_restart(start):
    script = '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && { echo "second $RANK" >&2; exit; }; [ $RANK = 2 ] && exit 3; exec sleep 60'
    code, out, err = start("--hosts=a,b,c", "--max-restarts=1", *shell(script)).wait()
    lines = [line for line in err.splitlines() if "OMP_NUM_THREADS" not in line]
    assert code == 0 and sorted(lines[-3:]) == [f"second {rank}" for rank in range(3)], err
    assert any("[a, b]" in line and "failed" in line for line in lines[:-3]) and any("[c] rank 2" in line for line in lines[:-3]), err


def test_exit_code_of_the_worker(start):
    code, _, err = start("--hosts=a,b", "--exit-code=worker", "--nproc-per-node=1",
                         *shell('[ $RANK = 1 ] && exit 7; exec sleep 600')).wait()
    assert code == 7, err


def test_a_program_that_is_missing(start):
    code, _, err = start("--hosts=a,b", "--nproc-per-node=1", "--no-python", "no-such-program").wait()
    assert code == 1
    assert "no-such-program" in err, err


def test_a_python_that_is_missing(start):
    _, _, err = start("--hosts=a", "--export=PYTHON_EXEC=/no/python", "-m", "json.tool").wait()
    assert "PYTHON_EXEC=/no/python: No such file or directory; make it there, or choose another one with --export=PYTHON_EXEC=PATH" in err


def test_a_script_that_is_missing(start):
    code, _, err = start("--hosts=a,b", "--nproc-per-node=1", "train.py").wait()
    assert code == 1
    assert "train.py: No such file or directory; " in err and "crun --hosts copies no programs: put it there" in err, err


# ---- hosts that cannot be reached

def not_started(err):
    """The hosts that the front names."""
    return re.findall("^crun: host (\\S+) could not be started: ", err, re.M)



def test_a_host_that_is_needed(start):
    begin = time.monotonic()
    code, out, err = start("--hosts=a,bad,c", "--nproc-per-node=1", *shell(HELLO)).wait()
    assert code == 1 and out == ""
    assert own_lines(err)[0].startswith("crun: host bad could not be started: "), err
    assert "cannot run without it" in own_lines(err)[0]
    assert time.monotonic() - begin < 30


def test_all_hosts_that_fail_are_named(start):
    code, out, err = start("--hosts=a,bad1,bad2,c", "--nproc-per-node=1", *shell(HELLO)).wait()
    assert code == 1 and out == ""
    assert sorted(not_started(err)) == ["bad1", "bad2"], err


def test_a_remedy_names_the_user(start):
    _, _, err = start("--hosts=u@denied", *shell("true")).wait()
    assert "host denied could not be started" in err and "`ssh-copy-id u@denied`" in err, err


def test_a_host_that_is_not_needed(start):
    code, out, err = start("--hosts=a,bad,c", "--nnodes=1:3", "--rdzv-conf=last_call_timeout=300", "--nproc-per-node=1",
                           *shell(HELLO)).wait()
    assert code == 0, err
    assert sorted(out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
    assert "host bad could not be started" in err and "the job goes on without it" in err, err


def test_no_launch_command(start):
    code, _, err = start("--hosts=a", "--launch=no-such-ssh {host}", *shell(HELLO)).wait()
    assert code == 1 and "no-such-ssh" in err, err


def test_a_directory_that_is_missing(start):
    code, _, err = start("--hosts=a,b", "--chdir=/no-such-folder", *shell(HELLO)).wait()
    assert code == 1
    named = not_started(err)
    assert named and len(named) == len(set(named)) and "/no-such-folder" in err, err


@pytest.mark.parametrize("folder, why", [("/proc/logs", "No such file or directory"), ("/dev/null/logs", "Not a directory")])
def test_a_folder_for_logs_that_cannot_be(start, tmp_path, folder, why):
    """Refused before any host is started."""
    code, out, err = start("--hosts=a", "-r", "3", f"--log-dir={folder}", *shell("touch ran")).wait()
    assert code == 1 and err == f"crun: cannot write log files under {folder}: {why}; choose another place with --log-dir\n"
    assert not list((tmp_path / "homes").iterdir())


def test_silent_ranks_have_log_files(start, tmp_path):
    code, out, err = start("--hosts=a,b", "-r", "3", f"--log-dir={tmp_path}/logs", "--no-python", "true").wait()
    assert (code, out) == (0, "")
    found = [path.relative_to(tmp_path / "logs").parts for path in (tmp_path / "logs").rglob("*.log")]
    assert sorted((host, *rest) for host, _, *rest in found) == [(host, "attempt_0", "0", f"std{name}.log") for host in "ab" for name in ("err", "out")]


def test_a_relative_directory_begins_at_home(start, tmp_path):
    """The bootstrap leaves the home directory for the folder of crun; neither PWD nor OLDPWD shows that."""
    (tmp_path / "homes/a/w").mkdir(parents=True)
    code, out, err = start("--hosts=a", "--chdir=w", *shell('env | grep PWD=; pwd -P')).wait()
    assert code == 0 and out == f"PWD={tmp_path}/homes/a/w\n{tmp_path}/homes/a/w\n", err


@pytest.mark.parametrize("command, words", [
    ("exec \"$@\" </dev/null", "standard input"),
    ("mkfifo f g; \"$@\" <f & \"$@\" <g & exec tee f >g", "two processes for one host, or copies its input"),
    ("echo broken >&2; exit 3", "broken"),
    ("exit 3", "exit code 3"),
    ("echo '@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @' >&2; echo 'Host key verification failed.' >&2; exit 255",
     "its host key has changed"),
    ("echo no shell here", "no shell here"),
    ("printf '\\nCRUN-CHANNEL 2 9.0\\n'; exec sleep 600", "its crun has another protocol"),
    ('echo "$@"', "launch`, the launch command, has printed its last words, which it has to run on the host: /bin/sh -c SCRIPT"),
    ("printf '\\nCRUN-CHANNEL 1 0.1.0 x86_64 0123456789abcdef\\nno frame here'; exec sleep 600", "broke the protocol")])
def test_a_launch_command_that_cannot_work(start, tmp_path, command, words):
    (tmp_path / "launch").write_text(f"#!/bin/sh\nshift\n{command}\n")
    (tmp_path / "launch").chmod(0o755)
    # The first of two processes may start its rank before the second has greeted: the rank is silent, and does not end.
    code, out, err = start("--hosts=a", f"--launch={tmp_path}/launch {{host}}", *shell("exec sleep 600")).wait()
    assert code == 1 and out == "", err
    assert any("host a " in line and words in line for line in own_lines(err)), err


# srun --unbuffered does the same.
TERMINAL = """\
import os, pty, subprocess, sys
master, slave = pty.openpty()
process = subprocess.Popen(sys.argv[2:], stdout=slave)
os.close(slave)
try:
    while data := os.read(master, 65536):
        os.write(1, data)
except OSError:
    pass
sys.exit(process.wait())
"""


def test_a_launch_command_with_a_terminal_as_output(start, tmp_path):
    (tmp_path / "launch").write_text(f"#!{sys.executable}\n{TERMINAL}")
    (tmp_path / "launch").chmod(0o755)
    code, out, err = start("--hosts=a,b", f"--launch={tmp_path}/launch {{host}}", "--nproc-per-node=1", *shell(HELLO)).wait()
    assert code == 0 and sorted(out.splitlines()) == ["rank 0 of 2", "rank 1 of 2"], err


# ---- losses

@pytest.mark.parametrize("word", ["--front-channel", "--rdzv-endpoint=", "fake_ssh"])
def test_a_lost_host_ends_the_job(start, word):
    """The far end, the agent, and the launch command of a host."""
    front = start("--hosts=a,b,c", "--nproc-per-node=2", *shell(HOLD))
    front.await_lines(6)
    victims = front.processes(word) if word != "fake_ssh" else children_of(front.process.pid)
    os.kill(victims[1], signal.SIGKILL)
    code, _, err = front.wait()
    assert code == 1, err
    assert "cannot run without it" in err, err
    assert ("ended there by SIGKILL" in err) == (word == "--rdzv-endpoint="), err


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(word) for word in f.read().split()]


def test_a_spare_replaces_a_lost_host(start):
    front = start("--hosts=a,b,spare", "--nnodes=2", "--max-restarts=2", "--nproc-per-node=1", "--rdzv-conf=last_call_timeout=1",
                  *shell('[ -e seen$RANK ] && exit 0; touch seen$RANK; echo "up $RANK"; exec sleep 600'))
    front.await_lines(2)
    working = [pid for pid in front.processes("sleep\x00600")]
    with open(f"/proc/{working[0]}/environ", "rb") as f:
        home = [v for v in f.read().split(b"\0") if v.startswith(b"HOME=")][0]
    far = [pid for pid in front.processes("--front-channel") if home in open(f"/proc/{pid}/environ", "rb").read()]
    os.kill(far[0], signal.SIGKILL)
    code, _, err = front.wait()
    assert code == 0, err
    assert "was lost" in err and "goes on without it" in err, err


def test_kill_of_the_front_leaves_nothing(start, tmp_path):
    """Agents whose rendezvous is gone for good do not look for it to ask other nodes for a snapshot."""
    front = start("--hosts=a,b,c", "--nproc-per-node=2", f"--debug={tmp_path}/debug", *shell(HOLD))
    front.await_lines(6)
    front.process.kill()
    assert front.rest() == []
    trace = (tmp_path / "debug").read_text()
    assert trace.count("group event signal state=running") == 3 and "group action leave" in trace and "request-drain" not in trace, trace[-4000:]


def test_a_stopped_front_is_named_by_what_it_is(start):
    """The port of the far end means nothing to a user."""
    front = start("--hosts=a,b", "--nproc-per-node=1", "--rdzv-conf=node_timeout_ms=500",
                  *shell('echo "up $RANK"; while [ ! -e end ]; do sleep 0.1; done'))
    front.await_lines(2)
    agents = front.processes("--rdzv-endpoint=")
    front.process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    front.process.send_signal(signal.SIGCONT)
    (front.folder / "end").touch()
    code, _, err = front.wait()
    assert code == 0 and len(agents) == 2, err
    assert "the rendezvous at the crun that started this job has stopped replying" in err and "127.0.0.1" not in err, err


# A far end that opens as many streams of a kind as it can, after a header that it does not read.
GREEDY = r"""#!/usr/bin/python3
import struct, sys, time
out = sys.stdout.buffer
out.write(b"\nCRUN-CHANNEL 1 0.1.0 x86_64 0123456789abcdef\n")
for number in range(1, {n} + 1):
    out.write(struct.pack("<BBHIIIIII", 6, 0, 0, number, 16, {kind}, 0, 0, number))
out.flush()
time.sleep(600)
"""


@pytest.mark.parametrize("kind, n", [(5, 41), (1, 77)])
def test_a_host_that_opens_too_much(start, tmp_path, kind, n):
    """At most 16 + 8 connections of each of three workers, and 64 + 4 other streams."""
    (tmp_path / "launch").write_text(GREEDY.format(kind=kind, n=n))
    (tmp_path / "launch").chmod(0o755)
    code, _, err = start("--hosts=a", "--nproc-per-node=3", f"--launch={tmp_path}/launch {{host}}", *shell("true")).wait()
    assert code == 1 and "host a " in err and "it opened more connections or streams than its workers can have" in err, err


# ---- signals

def test_one_signal_asks(start):
    front = start("--hosts=a,b,c", "--nproc-per-node=1", *shell(POLITE))
    front.await_lines(3)
    front.process.send_signal(signal.SIGTERM)
    code, out, err = front.wait()
    assert sorted(out.splitlines()) == ["asked 0", "asked 1", "asked 2"]
    assert code == 1, err


@pytest.mark.parametrize("number, nodes", [
    (signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGHUP, []), (signal.SIGTERM, ["--nnodes=2:3", "--max-restarts=3"]),
], ids=["term", "int", "hup", "spare"])
def test_a_signal_stops_the_whole_job(start, number, nodes):
    hosts = "a,b,c,d" if nodes else "a,b,c"
    front = start(f"--hosts={hosts}", "--nproc-per-node=2", "--exit-code=worker", *nodes, *shell(HOLD))
    front.await_lines(6)
    agents(front, hosts.count(",") + 1)
    front.process.send_signal(number)
    code, out, err = front.wait()
    assert code == 128 + number, err
    assert sorted(own_lines(err)) == [f"crun: {number.name}: the workers have 30 s to end; a second signal kills them",
                                      f"crun: stopped by {number.name}"], err
    assert out == ""


def test_workers_keep_their_store_while_they_end(start):
    front = start("--hosts=a,b", "--nproc-per-node=1",
                  *shell('trap "sleep 2; echo saved $RANK; exit 0" TERM; echo "up $RANK"; while :; do sleep 0.1; done'))
    front.await_lines(2)
    front.process.send_signal(signal.SIGTERM)
    code, out, err = front.wait()
    assert code == 1 and sorted(out.splitlines()) == ["saved 0", "saved 1"], err
    assert "are lost" not in err, err


def agents(front, n):
    """The agents of n hosts, as soon as they have been started."""
    found = []
    while len(found) < n:
        time.sleep(0.05)
        ends = front.processes("--front-channel")
        found = [pid for pid in front.processes("--local-addr") if parent(pid) in ends]
    return found


def parent(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return int(f.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def test_a_request_to_one_agent_stops_the_others(start):
    """The far end of one host alone passes the signal on: the rendezvous stops the other hosts, a spare as well."""
    front = start("--hosts=a,b,c,d", "--nproc-per-node=1", "--nnodes=2:3", "--max-restarts=3", *shell(HOLD))
    front.await_lines(3)
    asked = agents(front, 4)[0]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    assert libc.sigqueue(asked, signal.SIGTERM, 0x63727573) == 0
    code, out, err = front.wait()
    assert code == 1 and out == "", err
    assert "crun: stopped by SIGTERM" in own_lines(err), err
    assert not [word for word in ("rank", "failed first", "FAILED", "goes on as") if word in err], err


def files_below(folder):
    return {path.relative_to(folder).parts for path in folder.rglob("*") if not path.is_dir()}


def test_a_hang_stops_the_whole_job(start, tmp_path):
    """No rank is the cause, though all of them end by the signal. A single line names the stacks, and none stay on the hosts."""
    (tmp_path / "hosts_tmp").mkdir()
    front = start("--hosts=a,b", "--nproc-per-node=2", "--hang-timeout=1", "--hang-action=stop", f"--log-dir={tmp_path}/logs",
                  f"--export=TMPDIR={tmp_path}/hosts_tmp", *shell("exec sleep 600"))
    code, _, err = front.wait()
    assert code == 1 and "stopped by SIGTERM from --hang-action=stop" in err, err
    assert not [word for word in ("failed", "FAILED") if word in err], err
    assert set(re.findall("hang: no rank has made progress for \\d+ s; stacks: (.*)", err)) == {f"{tmp_path}/logs/*/*/attempt_0/stacks_1"}, err
    assert {(host, *rest) for host, _, *rest in files_below(tmp_path / "logs")} == {
        ("ab"[rank // 2], "attempt_0", "stacks_1", f"rank_{rank}.txt") for rank in range(4)}
    assert not files_below(tmp_path / "hosts_tmp")


@pytest.mark.parametrize("named", [True, False], ids=["named", "temporary"])
def test_error_files_come_to_the_front(start, tmp_path, named):
    hosts_tmp, front_tmp = tmp_path / "hosts_tmp", tmp_path / "front_tmp"
    hosts_tmp.mkdir()
    front_tmp.mkdir()
    script = '[ $RANK = 3 ] || exec sleep 600; echo "{\\"message\\": \\"told\\"}" > $TORCHELASTIC_ERROR_FILE; exit 3'
    logs = [f"--log-dir={tmp_path}/logs"] * named
    code, _, err = start("--hosts=a,b", "--nproc-per-node=2", *logs, f"--export=TMPDIR={hosts_tmp}", *shell(script), env={"TMPDIR": str(front_tmp)}).wait()
    assert code == 1 and "traceback : told" in err, err
    place = tmp_path / "logs" if named else next(front_tmp.iterdir())
    assert [(host, *rest) for host, _, *rest in files_below(place)] == [("b", "attempt_0", "1", "error.json")]
    assert f"crun: logs are kept in {place}\n" in err and not files_below(hosts_tmp) and str(hosts_tmp) not in err, err


def test_one_signal_ends_a_flood_on_a_blocked_console(start):
    front = start("--hosts=a,b", "--nproc-per-node=1", *shell('echo "up $RANK"; exec yes'))
    time.sleep(2)  # the pipe of the test is full by then
    front.process.send_signal(signal.SIGINT)
    assert front.process.wait(60) == 1


def test_a_second_signal_kills(start):
    front = start("--hosts=a,b,c", "--nproc-per-node=1", *shell(STUBBORN))
    front.await_lines(3)
    front.process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert front.process.poll() is None
    front.process.send_signal(signal.SIGINT)
    code, _, err = front.wait(20)
    assert code == 1 and "a second signal" in err, err


def test_a_silent_host_is_named_while_the_job_ends(start):
    front = start("--hosts=a,b", "--nproc-per-node=1", *shell(POLITE))
    front.await_lines(2)
    silent = front.processes("--front-channel")[0]
    os.kill(silent, signal.SIGSTOP)
    front.process.send_signal(signal.SIGINT)
    line = next(line for line in front.process.stderr if "waiting for host " in line)
    assert "which has not answered for " in line, line
    assert front.process.poll() is None
    os.kill(silent, signal.SIGCONT)
    code, _, err = front.wait()
    assert code == 1, err


def test_a_signal_while_hosts_start(start):
    front = start("--hosts=a,mute", "--nproc-per-node=1", *shell(HELLO))
    while not front.processes("--front-channel"):
        time.sleep(0.05)
    front.process.send_signal(signal.SIGINT)
    code, _, err = front.wait()
    assert code == 1, err


def test_a_signal_for_the_workers(start):
    front = start("--hosts=a,b", "--nproc-per-node=1",
                  *shell('trap "echo used $RANK; exit 0" USR1; echo "up $RANK"; while :; do sleep 0.1; done'))
    front.await_lines(2)
    front.process.send_signal(signal.SIGUSR1)
    code, out, err = front.wait()
    assert code == 0 and sorted(out.splitlines()) == ["used 0", "used 1"], err


def test_no_suspension(start):
    front = start("--hosts=a,b", "--nproc-per-node=1", *shell(POLITE))
    front.await_lines(2)
    front.process.send_signal(signal.SIGTSTP)
    assert "cannot be suspended" in front.process.stderr.readline()
    front.process.send_signal(signal.SIGTERM)
    assert front.wait()[0] == 1


# ---- the rendezvous

# The wire of TCPStore: SET, WAIT and GET of a value that is larger than all windows.
STORE = """
import os, socket, struct
def text(bytes): return struct.pack("<Q", len(bytes)) + bytes
def take(n):
    parts = b""
    while len(parts) < n:
        parts += s.recv(n - len(parts))
    return parts
def wait(key):
    s.sendall(b"\\6" + struct.pack("<Q", 1) + text(key))
    take(1)
s = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
s.sendall(b"\\0" + bytes.fromhex("cef7853c"))
value = b"v" * 1_000_000
if os.environ["RANK"] == "1":
    s.sendall(b"\\1" + text(b"k") + text(value))
    wait(b"done")
else:
    wait(b"k")
    s.sendall(b"\\3" + text(b"k"))
    print(struct.unpack("<Q", take(8))[0], take(len(value)) == value)
    s.sendall(b"\\1" + text(b"done") + text(b""))
"""


SAVE = STORE.partition("value =")[0] + """
import signal, time
ends = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, ends)
print("up", os.environ["RANK"], flush=True)
signal.sigwait(ends)
time.sleep(1)
s.sendall(b"\\1" + text(b"saved" + os.environ["RANK"].encode()) + text(b""))
wait(b"saved0")
wait(b"saved1")
print("agreed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_workers_that_stop_keep_their_keys(start, tmp_path, number):
    """They agree on a last checkpoint, though the job is over for the rendezvous."""
    (tmp_path / "save.py").write_text(SAVE)
    front = start("--hosts=a,b", "--nproc-per-node=1", "save.py")
    front.await_lines(2)
    front.process.send_signal(number)
    _, out, err = front.wait()
    assert out == "agreed\nagreed\n" and "keys" not in err, (out, err)


def test_workers_keep_their_keys_beside_a_failed_rank(start, tmp_path):
    """A third rank fails, and the others save what they have."""
    (tmp_path / "save.py").write_text("import os\nif os.environ['RANK'] == '2':\n    while not os.path.exists('go'): pass\n"
                                      "    exit(3)\n" + SAVE)
    front = start("--hosts=a,b,c", "--nproc-per-node=1", "save.py")
    front.await_lines(2)
    (tmp_path / "go").touch()
    _, out, err = front.wait()
    assert out == "agreed\nagreed\n" and "keys" not in err, (out, err)


def test_keys_at_the_front(start, tmp_path):
    """Each worker's store forwards to the rendezvous: a megabyte goes up and down the channels."""
    (tmp_path / "store.py").write_text(STORE)
    code, out, err = start("--hosts=a,b", "--nproc-per-node=1", "store.py").wait()
    assert code == 0 and out == "1000000 True\n", err



@pytest.mark.parametrize("security", [(), ("--security=open",)])
def test_a_crund(start, tmp_path, security):
    secret = tmp_path / "secret"
    secret.write_text("x" * 40)
    secret.chmod(0o600)
    with Crund(jobs.build_folder(), *([] if security else [f"--secret-file={secret}"])) as crund:
        options = security or (f"--secret-file={secret}",)
        code, out, err = start("--hosts=a,b", *options, f"--rdzv-endpoint=127.0.0.1:{crund.port}", "--nproc-per-node=1",
                               *shell("echo $RANK of $WORLD_SIZE")).wait()
    assert code == 0 and sorted(out.splitlines()) == ["0 of 2", "1 of 2"], err


def ask(*words):
    p = subprocess.run([jobs.build_folder() / "launcher/crunctl", *words], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    return p.stdout


def test_crunctl_where_the_front_is(start):
    """The agents have no sockets here, as if they ran on other machines."""
    job = f"front-{os.getpid()}"
    front = start("--hosts=a,b", f"--rdzv-id={job}", "--export=XDG_RUNTIME_DIR=/no-such-folder", "--nproc-per-node=1", *shell(HOLD))
    front.await_lines(2)
    status = json.loads(ask("status", "--json", job))
    assert sorted(worker["rank"] for node in status["nodes"] for worker in node["workers"]) == [0, 1], status
    assert "2/2 nodes, ranks: 2 running" in ask("top", "--once", job)
    assert "ranks 0-1 on " in ask("stacks", job)
    front.process.send_signal(signal.SIGTERM)
    front.wait()


def test_a_result_behind_a_failed_write(start, tmp_path):
    """A far end that has ended takes no more pings. Its result lies in the pipe, and counts."""
    (tmp_path / "far.py").write_text("""import os, struct, subprocess, sys, time
version = subprocess.run([sys.argv[1], "--version"], capture_output=True, text=True).stdout.split()[1]
os.write(1, b"\\nCRUN-CHANNEL 1 " + version.encode() + b"\\n")
os.close(0)
time.sleep(5)  # a ping comes every two seconds
os.write(1, struct.pack("<BxxxIIII", 14, 0, 8, 1, 0))
""")
    code, _, err = start("--hosts=a", f"--launch={sys.executable} {tmp_path}/far.py {jobs.crun()} {{host}}", *shell("true")).wait()
    assert code == 0 and "lost" not in err, err


# ---- standard input

def test_input_of_rank_0(start):
    front = start("--hosts=a,b", "--nproc-per-node=2", *shell('[ $RANK = 0 ] && exec wc -c; exit 0'), stdin=subprocess.PIPE)
    out, err = front.process.communicate("x" * 1_000_000, timeout=60)
    assert front.process.returncode == 0 and out.strip() == "1000000", err


def test_input_from_a_file(start, tmp_path):
    (tmp_path / "input").write_text("from a file\n" * 30_000)
    with open(tmp_path / "input") as f:
        code, out, err = start("--hosts=a,b", "--nproc-per-node=1", *shell('[ $RANK = 0 ] && exec wc -l; exit 0'), stdin=f).wait()
    assert code == 0 and out.strip() == "30000", err
