"""`crun --front-channel`, the far end of a front's channel on a host, against a front that is written in Python."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import pytest

import host_channel
import jobs
import launches
from crund import Crund
from host_channel import (AGENT_ERR, ARGUMENT, CONNECTION, DATA, DIRECTORY, END, ERROR_FILE, PING, SECRET, SIGNAL, STACKS, START, STDERR, STDOUT, VARIABLE, WINDOW,
                          Channel, frame, header)

pytestmark = pytest.mark.sanitize

SHELL = ("--no-python", "sh", "-c")


@pytest.fixture(autouse=True)
def limit():
    yield from jobs.within(120)


def alone(*words, workers=2):
    return ["--standalone", f"--nproc-per-node={workers}", *words]


def test_output_of_two_ranks_and_the_result():
    with Channel() as c:
        c.start(alone("--max-restarts=1", *SHELL, "echo out $RANK $TORCHELASTIC_RESTART_COUNT; echo err $RANK >&2;"
                      "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; sleep 0.3; exit 3"))
        assert c.rest() == 0
        for rank in range(2):
            for attempt in range(2):
                assert c.output(STDOUT, rank, attempt) == f"out {rank} {attempt}\n".encode()
                assert c.output(STDERR, rank, attempt) == f"err {rank}\n".encode()
        assert c.result == (1, 0) and not c.notes and all(s.ended for s in c.streams.values())
        assert {s.local_rank for s in c.streams.values() if s.kind == STDOUT} == {0, 1}


def test_the_agents_own_lines_and_code():
    with Channel() as c:
        c.start(alone(*SHELL, "exit 5"))
        assert c.rest() == 1 and c.result == (1, 1)
        assert b"exit code 5" in c.output(AGENT_ERR) and not c.output(STDOUT)


def files_below(folder):
    return [path for path in folder.rglob("*") if not path.is_dir()]


def test_error_files_travel(tmp_path):
    """Above the size of a new pipe, too; nothing stays on the host."""
    with Channel(environment={"TMPDIR": str(tmp_path)}) as c:
        c.start(alone(*SHELL, '[ $RANK = 1 ] || exec sleep 600; { echo "{\\"message\\": \\"told\\"}"; head -c 500000 /dev/zero | tr "\\0" " "; }'
                      " > $TORCHELASTIC_ERROR_FILE; exit 3"))
        assert c.rest() == 1
        text = b'{"message": "told"}\n' + 500000 * b" "
        assert [(s.rank, s.local_rank, s.attempt, s.data) for s in c.streams.values() if s.kind == ERROR_FILE] == [(1, 1, 0, text)]
        assert b"error_file: attempt_0/1/error.json" in c.output(AGENT_ERR) and b"told" in c.output(AGENT_ERR)
        assert str(tmp_path).encode() not in c.output(AGENT_ERR) and not files_below(tmp_path)


def test_stacks_travel_while_the_job_hangs(tmp_path):
    with Channel(environment={"TMPDIR": str(tmp_path)}) as c:
        c.start(alone("--hang-timeout=1", *SHELL, "exec sleep 600"))
        c.wait(lambda c: sum(s.ended for s in c.streams.values() if s.kind == STACKS) == 2)
        found = {s.rank: s for s in c.streams.values() if s.kind == STACKS}
        assert sorted(found) == [0, 1] and {(s.local_rank, s.attempt) for s in found.values()} == {(1, 0)}
        assert all(b"sleep" in s.data for s in found.values())
        assert b"; stacks: attempt_0/stacks_1\n" in c.output(AGENT_ERR) and not files_below(tmp_path)
        c.end_input()
        c.rest()


def test_the_header_decides_on_directory_environment_and_arguments(tmp_path):
    with Channel(environment={"KEPT": "base", "CHANGED": "base", "CRUN_OUTPUT_FD": "77"}) as c:
        c.start(alone("--no-python", "sh", "-c", 'pwd; echo "$KEPT $CHANGED $NEW"; echo "$0-$1-$2"; env | grep -c -e CRUN_SECRET_FD -e CRUN_OUTPUT_FD', "{endpoint}", "",
                      "a b", workers=1), directory=tmp_path, variables=["CHANGED=header", "NEW=a=b"])
        c.rest()
        assert c.output().decode().splitlines() == [str(tmp_path), "base header a=b", "{endpoint}--a b", "0"]


@pytest.mark.parametrize("directory, sentence", [
    ("/nonexistent/place", "the working directory /nonexistent/place: No such file or directory"),
    ("/dev/null", "the working directory /dev/null: Not a directory")])
def test_a_directory_that_is_not_there(directory, sentence):
    with Channel() as c:
        c.start(alone(*SHELL, "true"), directory=directory)
        assert c.rest() != 0
        assert len(c.notes) == 1 and c.notes[0].startswith(sentence) and "--chdir" in c.notes[0]


def test_a_program_that_is_not_there_is_named():
    with Channel() as c:
        c.start(alone("/nonexistent/train.py"))
        assert c.rest() == 1 and c.result == (1, 1)
        assert b"/nonexistent/train.py: No such file" in c.output(AGENT_ERR)


def blocked_in_write(pid):
    """The worker sleeps in write() to its pipe."""
    try:
        return "pipe_write" in pathlib.Path(f"/proc/{pid}/wchan").read_text() or \
            pathlib.Path(f"/proc/{pid}/syscall").read_text().startswith("1 ")
    except OSError:
        return False


CHATTY = """import os, sys, time
if os.environ["RANK"] == "0":
    print(os.getpid(), file=sys.stderr, flush=True)
    os.write(1, b"x" * (2 << 20))
    print("written", file=sys.stderr, flush=True)
else:
    for i in range(20):
        print(i, flush=True)
        time.sleep(0.05)
"""


def test_a_used_up_window_holds_up_its_writer_alone():
    with Channel(grants=False) as c:
        c.start(alone("--no-python", sys.executable, "-c", CHATTY))
        assert c.wait(lambda c: len(c.output(STDOUT, 1).split()) == 20 and len(c.output(STDOUT, 0)) == host_channel.OUTPUT_WINDOW)
        pid = int(c.output(STDERR, 0).split()[0])
        assert c.wait(lambda c: blocked_in_write(pid), 20)
        for _ in range(3):  # the far end and the agent go on
            before = c.seen[host_channel.PONG]
            c.send(frame(PING))
            assert c.wait(lambda c: c.seen[host_channel.PONG] > before)
        assert len(c.output(STDOUT, 0)) == host_channel.OUTPUT_WINDOW and b"written" not in c.output(STDERR, 0)
        number = next(n for n, s in c.streams.items() if s.kind == STDOUT and s.rank == 0)
        for size in [1000, 1, 70000] + [host_channel.OUTPUT_WINDOW] * 7:
            had = c.streams[number].n
            c.grant(number, size)
            assert c.wait(lambda c: c.streams[number].n == min(had + size, 2 << 20), 20)
        assert c.rest() == 0 and c.output(STDOUT, 0) == b"x" * (2 << 20) and b"written" in c.output(STDERR, 0)


def rest_of_all(channels):
    threads = [threading.Thread(target=c.rest) for c in channels]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_stdin_goes_to_the_host_of_rank_0_when_wanted():
    with Channel() as c:
        c.start(alone(*SHELL, "wc -c", workers=1))
        assert c.wait(lambda c: c.stdin_window)
        text = os.urandom(300 << 10)
        sent = 0
        while sent < len(text):
            assert c.wait(lambda c: c.stdin_window)
            n = min(c.stdin_window, host_channel.PAYLOAD_MAX, len(text) - sent)
            c.send(frame(DATA, text[sent:sent + n], c.stdin))
            c.stdin_window -= n
            sent += n
        c.send(frame(END, b"", c.stdin))
        assert c.rest() == 0 and c.output() == f"{300 << 10}\n".encode()


def test_two_hosts_meet_in_a_rendezvous_behind_their_channels(tmp_path):
    """The agents authenticate with the secret of the channel and reach crund by tunnels alone."""
    secret = host_channel.new_secret()
    (tmp_path / "secret").write_bytes(secret)
    (tmp_path / "secret").chmod(0o600)
    with Crund(jobs.build_folder(), f"--secret-file={tmp_path}/secret") as crund:
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(Channel(rendezvous=("127.0.0.1", crund.port), environment={"CRUN_SECRET_FILE": "/nonexistent"}))
                     for _ in range(2)]
            for c in nodes:
                c.start(["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=tunnels", "--rdzv-conf=is_host=0", "--security=require",
                         "--local-addr=127.0.0.1", *SHELL, "echo rank $RANK of $WORLD_SIZE; [ $RANK = 2 ] && wc -c >&2; true"], secret=secret)
            rest_of_all(nodes)
            lines = sorted(line for c in nodes for rank in range(4) for line in c.output(STDOUT, rank).decode().splitlines())
            assert lines == [f"rank {i} of 4" for i in range(4)], [c.output(AGENT_ERR) for c in nodes]
            assert all(any(s.kind == CONNECTION for s in c.streams.values()) for c in nodes)
            assert [c.stdin_window is not None for c in nodes] == [bool(c.output(STDOUT, 0)) for c in nodes]  # rank 0 alone
            assert b"".join(c.output(STDERR, 2) for c in nodes) == b"0\n"


def test_the_secret_is_in_no_argument_and_no_environment():
    secret = host_channel.new_secret()
    with Channel() as c:
        c.start(alone(*SHELL, "echo ready; sleep 60", workers=1), secret=secret)
        assert c.wait(lambda c: b"ready" in c.output())
        pids = launches.living(c.tag)
        assert len(pids) >= 3
        for pid in pids:
            for name in ("cmdline", "environ"):
                assert secret not in pathlib.Path(f"/proc/{pid}/{name}").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_the_agent(number):
    with Channel() as c:
        c.start(alone(*SHELL, "trap 'echo stopped $RANK; exit 0' INT TERM; echo ready; while :; do sleep 0.1; done"))
        assert c.wait(lambda c: c.output(STDOUT, 0) and c.output(STDOUT, 1))
        c.send(frame(SIGNAL, struct.pack("<I", number)))
        c.rest()
        assert b"stopped 0" in c.output(STDOUT, 0) and b"stopped 1" in c.output(STDOUT, 1) and c.result


ENDURING = "echo ready; trap '' HUP; sleep 600 & while :; do sleep 0.2; done"


def started(c, script=ENDURING):
    c.start(alone("--shutdown-timeout=1", *SHELL, script))
    assert c.wait(lambda c: c.output(STDOUT, 0) and c.output(STDOUT, 1))
    assert len(launches.living(c.tag)) >= 5


@pytest.mark.parametrize("way", ["end of input", "kill", "term", "both ends closed", "broken frame"])
def test_nothing_is_left(way):
    with Channel() as c:
        started(c)
        if way == "kill":
            c.process.kill()
        elif way == "term":
            c.process.terminate()
        elif way == "broken frame":
            c.send(b"\xff" * 12)
        else:
            c.end_input()
        if way == "both ends closed":
            c.process.stdout.close()
            c.process.wait(30)
        else:
            c.rest(30)
        if way == "broken frame":
            assert c.notes == ["the front broke the protocol of the channel"]
        assert launches.wait_until_gone(c.tag, 20) == {}


def test_the_kill_of_the_agent_is_the_result():
    with Channel() as c:
        started(c)
        agent = int(pathlib.Path(f"/proc/{c.process.pid}/task/{c.process.pid}/children").read_text().split()[0])
        os.kill(agent, signal.SIGKILL)
        assert c.rest(30) == 128 + 9 and c.result == (0, 9)
        assert launches.wait_until_gone(c.tag, 20) == {}


def test_workers_that_block_in_write_end_as_well():
    with Channel(grants=False) as c:
        c.start(alone("--shutdown-timeout=1", *SHELL, "trap '' TERM; yes"))
        assert c.wait(lambda c: len(c.output(STDOUT, 0)) == len(c.output(STDOUT, 1)) == host_channel.OUTPUT_WINDOW)
        c.end_input()
        c.process.wait(30)
        assert launches.wait_until_gone(c.tag, 20) == {}


def test_another_process_with_the_pipe_does_not_hold_the_end():
    """This one takes the place of a process that a worker left behind; the guardian ends those that it can see."""
    with Channel() as c:
        c.start(alone(*SHELL, "echo $$$$; read line; echo $line", workers=1))
        assert c.wait(lambda c: c.output() and c.stdin_window)
        held = os.open(f"/proc/{int(c.output())}/fd/1", os.O_WRONLY)
        c.send(frame(DATA, b"done\n", c.stdin))
        begun = time.monotonic()
        assert c.rest() == 0 and c.output().endswith(b"\ndone\n") and time.monotonic() - begun < 25
        os.close(held)


def test_all_that_was_written_before_the_end_arrives():
    with Channel() as c:
        c.start(alone("--no-python", "head", "-c", "3000000", "/dev/zero"))
        assert c.rest() == 0
        assert [len(c.output(STDOUT, rank)) for rank in range(2)] == [3000000, 3000000]


@pytest.mark.parametrize("frames, sentence", [
    (frame(ARGUMENT, b"x"), "broke the protocol"),
    (frame(START), "broke the protocol"),
    (frame(SECRET, b"a") + frame(SECRET, b"b"), "broke the protocol"),
    (frame(SECRET, b"a") + frame(DIRECTORY, b"/") + frame(DIRECTORY, b"/"), "broke the protocol"),
    (frame(SECRET, b"a") + frame(DIRECTORY, b"/" * 4097), "broke the protocol"),
    (frame(SECRET, b"a") + frame(VARIABLE, b"=x"), "broke the protocol"),
    (frame(SECRET, b"a") + frame(VARIABLE, b"ab"), "broke the protocol"),
    (frame(SECRET, b"a") + frame(DATA, b"x"), "broke the protocol"),
    (frame(SECRET, b"a" * 4097), "broke the protocol"),
    (frame(SECRET, b"a") + frame(ARGUMENT, b"x" * 65536) * 65, "above 4 MiB"),
    (b"", "ended before the job's secret"),
])
def test_a_header_that_is_refused(frames, sentence):
    with Channel() as c:
        c.send(frames)
        c.end_input()
        assert c.rest() == 1 and len(c.notes) == 1 and sentence in c.notes[0]


def test_a_front_that_is_no_pipe():
    p = subprocess.run([jobs.crun(), "--front-channel"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=20)
    assert p.returncode == 2 and p.stdout == "" and "crun --hosts" in p.stderr


def tunnel_port(pid):
    """Where the far end takes connections of its agent."""
    found = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return next(int(f[1].split(":")[1], 16) for f in found if f[3] == "0A" and f"socket:[{f[9]}]" in inodes)


DIAL = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.settimeout(20); print(s.recv(9))"


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_does_not_reach_the_rendezvous():
    with socket.create_server(("127.0.0.1", 0)) as listener, Channel(rendezvous=listener.getsockname()) as c:
        c.start(alone(*SHELL, "echo ready; sleep 60", workers=1))
        assert c.wait(lambda c: b"ready" in c.output())
        for user, is_carried in ((65534, False), (0, True)):
            client = subprocess.Popen(["/usr/bin/python3", "-c", DIAL, str(tunnel_port(c.process.pid))], user=user, stdout=subprocess.PIPE, text=True)
            if is_carried:
                assert c.wait(lambda c: any(s.kind == CONNECTION for s in c.streams.values()))
                listener.accept()[0].sendall(b"hello")
                c.wait(lambda c: client.poll() is not None)
            assert client.communicate(timeout=30)[0] == ("b'hello'\n" if is_carried else "b''\n")
            assert any(s.kind == CONNECTION for s in c.streams.values()) == is_carried


@pytest.mark.parametrize("by_ssh", [True, False])
def test_the_agent_gets_the_address_by_which_ssh_came(by_ssh):
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    own = next((a for a in own if ":" not in a), "127.0.0.1")
    with Channel(environment={"SSH_CONNECTION": f"192.0.2.7 4711 {own if by_ssh else '127.0.0.1'} 22"}) as c:
        c.start(alone(*SHELL, "echo ready; sleep 60", workers=1))
        assert c.wait(lambda c: c.output())
        lines = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in launches.living(c.tag)]
        assert any(f"--local-addr={own}" in line for line in lines), lines


def test_a_flood_of_connections_is_bounded():
    """A process of the host that dials the tunnel's port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    with Channel(rendezvous=listener.getsockname()) as c:
        c.start(alone(*SHELL, "echo ready; sleep 60", workers=1))
        assert c.wait(lambda c: b"ready" in c.output())
        clients = [socket.create_connection(("127.0.0.1", tunnel_port(c.process.pid))) for _ in range(300)]
        time.sleep(0.2)
        before = c.seen[host_channel.PONG]
        c.send(frame(PING))
        assert c.wait(lambda c: c.seen[host_channel.PONG] > before)
        assert sum(s.kind == CONNECTION for s in c.streams.values()) == 16 + 8 * 4
        for s in clients:
            s.close()
    listener.close()


def test_agents_of_a_front_that_is_gone_leave_at_once(tmp_path):
    """The front and its rendezvous are gone, the far ends are not: agents do not look for it to ask other nodes for a snapshot."""
    with Crund(jobs.build_folder()) as crund, contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Channel(rendezvous=("127.0.0.1", crund.port))) for _ in range(2)]
        for i, c in enumerate(nodes):
            c.start(["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=left", "--rdzv-conf=is_host=0", "--local-addr=127.0.0.1",
                     f"--debug={tmp_path}/{i}", *SHELL, "echo ready; exec sleep 600"])
        threads = [threading.Thread(target=c.wait, args=(lambda c: b"ready" in c.output(STDOUT, 0) + c.output(STDOUT, 1),)) for c in nodes]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for c in nodes:
            c.end_input()
            c.rest(30)
        for i in range(2):
            trace = (tmp_path / str(i)).read_text()
            assert "group action leave" in trace and "request-drain" not in trace, trace[-4000:]


def test_workers_may_print_while_they_end_without_a_front(tmp_path):
    with Channel() as c:
        c.start(alone("--shutdown-timeout=20", "--no-python", "sh", "-c", "trap 'for i in 1 2 3; do echo $i || exit; sleep 0.1; done; touch saved; exit' TERM;"
                      "echo ready; while :; do sleep 0.1; done", workers=1), directory=tmp_path, shutdown_s=20)
        assert c.wait(lambda c: c.output())
        c.end_input()
        c.process.stdout.close()
        c.process.wait(30)
        assert (tmp_path / "saved").exists()


def test_hostile_frames():
    seed = int(os.environ.get("CRUN_SEED", 0)) or random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for i in range(12):
        with Channel(grants=chance.random() < 0.5, rendezvous=("127.0.0.1", 1)) as c:
            begins_well = chance.random() < 0.7
            if begins_well:
                c.start(alone("--shutdown-timeout=1", *SHELL, "echo ready; cat; sleep 100", workers=1))
                c.wait(lambda c: c.output() or c.stdin_window)
            c.send(host_channel.hostile(chance, chance.choice([20, 1000, 200000])))
            c.end_input()
            c.rest(30)
            error = c.process.stderr.read()
            assert c.process.wait(10) >= 0 and b"Sanitizer" not in error and b"Assert" not in error, (i, error)
            assert launches.wait_until_gone(c.tag, 20) == {}, i
